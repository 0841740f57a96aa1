// What an operator does with rpk, on the same library: list topics, consume, describe a group, list transactions.
// It prints one JSON object; the test that calls it knows what must be in it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

type report struct {
	Topics       map[string]int      `json:"topics"`
	Values       []string            `json:"values"`
	Group        map[string]any      `json:"group"`
	Lag          int64               `json:"lag"`
	Transactions map[string]string   `json:"transactions"`
	Configs      map[string]string   `json:"configs"`
	Offsets      map[string][2]int64 `json:"offsets"`
	Brokers      []int32             `json:"brokers"`
}

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(seeds, topic, group string) error {
	// Guards only: nothing here is about time, and a machine may stand still for a while.
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(seeds),
		kgo.ConsumeTopics(topic),
		kgo.ConsumerGroup(group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.DisableAutoCommit(),
		kgo.TransactionalID("go-"+topic),
		kgo.TransactionTimeout(10*time.Minute),
		kgo.SessionTimeout(5*time.Minute),
		kgo.RequestTimeoutOverhead(2*time.Minute),
		kgo.RetryTimeout(5*time.Minute),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	out := report{
		Topics: map[string]int{}, Transactions: map[string]string{}, Configs: map[string]string{},
		Offsets: map[string][2]int64{}, Group: map[string]any{},
	}

	if _, err := admin.CreateTopic(ctx, 2, 1, nil, topic); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	for i := 0; i < 2; i++ {
		if err := client.BeginTransaction(); err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		for j := 0; j < 10; j++ {
			record := &kgo.Record{Topic: topic, Value: []byte(fmt.Sprintf("%d-%d", i, j))}
			if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
				return fmt.Errorf("produce: %w", err)
			}
		}
		if i == 1 {
			listed, err := admin.ListTransactions(ctx, nil, nil)
			if err != nil {
				return fmt.Errorf("transactions: %w", err)
			}
			for id, one := range listed {
				out.Transactions[id] = one.State
			}
		}
		if err := client.EndTransaction(ctx, i == 0); err != nil {
			return fmt.Errorf("end: %w", err)
		}
	}
	for len(out.Values) < 10 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		fetches.EachError(func(t string, p int32, e error) { err = fmt.Errorf("fetch %s %d: %w", t, p, e) })
		if err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) { out.Values = append(out.Values, string(r.Value)) })
	}
	sort.Strings(out.Values)
	if err := client.CommitUncommittedOffsets(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}

	topics, err := admin.ListTopics(ctx)
	if err != nil {
		return fmt.Errorf("topics: %w", err)
	}
	for name, one := range topics {
		out.Topics[name] = len(one.Partitions)
	}
	lags, err := admin.Lag(ctx, group)
	if err != nil {
		return fmt.Errorf("lag: %w", err)
	}
	one := lags[group]
	if err := one.Error(); err != nil {
		return fmt.Errorf("lag of the group: %w", err)
	}
	out.Group["state"], out.Group["members"], out.Lag = one.State, len(one.Members), one.Lag.Total()
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return fmt.Errorf("configs: %w", err)
	}
	for _, config := range configs[0].Configs {
		if config.Key == "cleanup.policy" && config.Value != nil {
			out.Configs[config.Key] = *config.Value
		}
	}
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return fmt.Errorf("starts: %w", err)
	}
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return fmt.Errorf("ends: %w", err)
	}
	ends.Each(func(end kadm.ListedOffset) {
		start, _ := starts.Lookup(topic, end.Partition)
		out.Offsets[fmt.Sprint(end.Partition)] = [2]int64{start.Offset, end.Offset}
	})
	metadata, err := admin.BrokerMetadata(ctx)
	if err != nil {
		return fmt.Errorf("brokers: %w", err)
	}
	out.Brokers = metadata.Brokers.NodeIDs()
	if _, err := admin.DeleteTopic(ctx, topic); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}
