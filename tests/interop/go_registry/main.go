// Uses a schema registry through franz-go's sr package, and prints what it saw as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"

	"github.com/twmb/franz-go/pkg/sr"
)

const (
	order  = `{"type":"record","name":"Order","fields":[{"name":"id","type":"string"}]}`
	wider  = `{"type":"record","name":"Order","fields":[{"name":"id","type":"string"},{"name":"note","type":"string","default":""}]}`
	broken = `{"type":"record","name":"Order","fields":[{"name":"n","type":"int"}]}`
	line   = `{"type":"record","name":"Line","fields":[{"name":"order","type":"Order"}]}`
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func code(err error) int {
	var refused *sr.ResponseError
	if errors.As(err, &refused) {
		return refused.ErrorCode
	}
	return 0
}

func main() {
	ctx := context.Background()
	client, err := sr.NewClient(sr.URLs(os.Args[1]), sr.BasicAuth(os.Args[2], os.Args[3]))
	check(err)
	seen := map[string]any{}

	first, err := client.CreateSchema(ctx, "orders-value", sr.Schema{Schema: order})
	check(err)
	second, err := client.CreateSchema(ctx, "orders-value", sr.Schema{Schema: wider})
	check(err)
	seen["versions"] = []int{first.ID, first.Version, second.ID, second.Version}

	compatible, err := client.CheckCompatibility(ctx, "orders-value", -1, sr.Schema{Schema: broken})
	check(err)
	seen["compatible"] = []any{compatible.Is, len(compatible.Messages) > 0}
	_, err = client.CreateSchema(ctx, "orders-value", sr.Schema{Schema: broken})
	seen["broken"] = code(err)

	referring, err := client.CreateSchema(ctx, "lines-value", sr.Schema{
		Schema:     line,
		References: []sr.SchemaReference{{Name: "Order", Subject: "orders-value", Version: 1}},
	})
	check(err)
	users, err := client.SchemaReferences(ctx, "orders-value", 1)
	check(err)
	seen["references"] = []any{referring.ID, len(users), users[0].Subject}

	proto, err := client.CreateSchema(ctx, "proto-value", sr.Schema{
		Schema: "syntax = \"proto3\"; message Order { string id = 1; }", Type: sr.TypeProtobuf,
	})
	check(err)
	seen["type"] = proto.Type.String()

	found, err := client.LookupSchema(ctx, "orders-value", sr.Schema{Schema: order})
	check(err)
	byID, err := client.SchemaByID(ctx, second.ID)
	check(err)
	seen["lookup"] = []any{found.Version, byID.Schema == wider}

	level := sr.CompatFull
	results := client.SetCompatibility(ctx, sr.SetCompatibility{Level: level}, "orders-value")
	check(results[0].Err)
	modes := client.Mode(ctx)
	check(modes[0].Err)
	seen["settings"] = []string{results[0].Level.String(), modes[0].Mode.String()}

	subjects, err := client.Subjects(ctx)
	check(err)
	seen["subjects"] = subjects

	// The encoding of franz-go's Serde: a magic byte and the id.
	var serde sr.Serde
	serde.Register(second.ID, map[string]string{}, sr.EncodeFn(json.Marshal))
	framed, err := serde.Encode(map[string]string{"id": "o-1"})
	check(err)
	seen["framed"] = framed[:5]

	_, err = client.DeleteSubject(ctx, "lines-value", sr.SoftDelete)
	check(err)
	_, err = client.DeleteSubject(ctx, "lines-value", sr.HardDelete)
	check(err)
	_, err = client.SchemaByVersion(ctx, "lines-value", 1)
	seen["missing"] = code(err)
	check(json.NewEncoder(os.Stdout).Encode(seen))
}
