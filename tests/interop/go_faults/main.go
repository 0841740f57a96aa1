// A franz-go client that a test drives step by step, so that it does the wrong thing at the right moment.
// It reads one command per line from standard input and answers each with one line, "ok" or "error: ...";
// its debug log goes to standard error in the format of kgo.BasicLogger.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type settings struct {
	Seeds                string `json:"seeds"`
	ClientID             string `json:"client_id"`
	Topic                string `json:"topic"`
	Group                string `json:"group"`
	RebalanceTimeoutMs   int    `json:"rebalance_timeout_ms"`
	SessionTimeoutMs     int    `json:"session_timeout_ms"`
	HeartbeatIntervalMs  int    `json:"heartbeat_interval_ms"`
	TransactionalID      string `json:"transactional_id"`
	TransactionTimeoutMs int    `json:"transaction_timeout_ms"`
}

func main() {
	var chosen settings
	if err := json.Unmarshal([]byte(os.Args[1]), &chosen); err != nil {
		panic(err)
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(chosen.Seeds),
		kgo.ClientID(chosen.ClientID),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelDebug, func() string {
			return time.Now().UTC().Format("[2006-01-02T15:04:05.000Z] ")
		})),
	}
	if chosen.TransactionalID != "" {
		options = append(options, kgo.TransactionalID(chosen.TransactionalID),
			kgo.TransactionTimeout(time.Duration(chosen.TransactionTimeoutMs)*time.Millisecond))
	}
	if chosen.Group != "" {
		options = append(options, kgo.ConsumerGroup(chosen.Group), kgo.ConsumeTopics(chosen.Topic),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.BlockRebalanceOnPoll(), kgo.Balancers(kgo.RangeBalancer()),
			kgo.HeartbeatInterval(time.Duration(chosen.HeartbeatIntervalMs)*time.Millisecond),
			kgo.SessionTimeout(time.Duration(chosen.SessionTimeoutMs)*time.Millisecond),
			kgo.RebalanceTimeout(time.Duration(chosen.RebalanceTimeoutMs)*time.Millisecond))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		command, argument, _ := strings.Cut(lines.Text(), " ")
		if err := run(ctx, client, chosen.Topic, command, argument); err != nil {
			fmt.Printf("error: %s\n", strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Println("ok")
		}
	}
}

func run(ctx context.Context, client *kgo.Client, topic, command, argument string) error {
	switch command {
	case "begin":
		return client.BeginTransaction()
	case "produce": // so many records, to partitions 0 and 1 in turn
		var count int32
		fmt.Sscan(argument, &count)
		for i := int32(0); i < count; i++ {
			record := &kgo.Record{Topic: topic, Partition: i % 2, Value: []byte(fmt.Sprintf("v%d", i))}
			if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
				return err
			}
		}
		return nil
	case "commit":
		return client.EndTransaction(ctx, kgo.TryCommit)
	case "poll": // until there were so many records
		var count int
		fmt.Sscan(argument, &count)
		for count > 0 {
			fetches := client.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				return err
			}
			count -= fetches.NumRecords()
		}
		return nil
	case "commit-offsets":
		return client.CommitUncommittedOffsets(ctx)
	case "allow-rebalance":
		client.AllowRebalance()
		return nil
	case "close":
		client.CloseAllowingRebalance()
		return nil
	}
	return fmt.Errorf("unknown command %q", command)
}
