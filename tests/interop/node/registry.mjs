// Uses a schema registry through @kafkajs/confluent-schema-registry, and prints what it saw as JSON.
import registry from "@kafkajs/confluent-schema-registry";

const { COMPATIBILITY, SchemaRegistry, SchemaType } = registry;
const [host, username, password] = process.argv.slice(2);
const client = new SchemaRegistry({ host, auth: { username, password } });
const order = { type: "record", name: "Order", fields: [{ name: "id", type: "string" }] };
const wider = { ...order, fields: [...order.fields, { name: "note", type: "string", default: "" }] };
const broken = { ...order, fields: [{ name: "n", type: "int" }] };
const avro = (schema) => ({ type: SchemaType.AVRO, schema: JSON.stringify(schema) });
const options = { subject: "orders-value", compatibility: COMPATIBILITY.BACKWARD };
const seen = {};

const first = await client.register(avro(order), options);
const second = await client.register(avro(wider), options);
seen.ids = [first.id, second.id];
try {
  await client.register(avro(broken), options);
  seen.broken = "accepted";
} catch (error) {
  seen.broken = error.status;
}
const framed = await client.encode(first.id, { id: "o-1" });
seen.framed = [...framed.subarray(0, 5)];
seen.decoded = await client.decode(framed);
seen.latest = await client.getLatestSchemaId("orders-value");
seen.found = await client.getRegistryIdBySchema("orders-value", avro(order));

const json = { type: "object", title: "Order", properties: { id: { type: "string" } }, required: ["id"] };
const typed = await client.register(
  { type: SchemaType.JSON, schema: JSON.stringify(json) }, { subject: "json-value" });
seen.json = await client.decode(await client.encode(typed.id, { id: "o-2" }));

const item = 'syntax = "proto3"; package shop; message Item { string sku = 1; }';
const basket = 'syntax = "proto3"; package shop; import "item.proto"; message Basket { Item item = 1; }';
await client.register({ type: SchemaType.PROTOBUF, schema: item }, { subject: "item" });
const proto = await client.register(
  { type: SchemaType.PROTOBUF, schema: basket, references: [{ name: "item.proto", subject: "item", version: 1 }] },
  { subject: "basket-value" });
seen.proto = await client.decode(await client.encode(proto.id, { item: { sku: "s-1" } }));
console.log(JSON.stringify(seen));
