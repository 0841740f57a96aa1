import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** What producers, consumers and share consumers can be asked to do; each lives under the name it was opened with. */
final class ClientActions {
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new ConcurrentHashMap<>();
    private final Map<String, KafkaConsumer<byte[], byte[]>> consumers = new ConcurrentHashMap<>();
    private final Map<String, List<ConsumerRecord<byte[], byte[]>>> early = new ConcurrentHashMap<>();
    private final Map<String, Map<String, ConsumerRecord<byte[], byte[]>>> unanswered = new ConcurrentHashMap<>();
    private final Map<String, KafkaShareConsumer<byte[], byte[]>> shares = new ConcurrentHashMap<>();

    Object run(String action, JsonNode request) throws Exception {
        String name = request.path("on").asText();
        switch (action) {
            case "producer.open":
                producers.put(name, new KafkaProducer<>(Json.config(request.get("config")), new ByteArraySerializer(), new ByteArraySerializer()));
                return null;
            case "consumer.open":
                consumers.put(name, new KafkaConsumer<>(Json.config(request.get("config")), new ByteArrayDeserializer(), new ByteArrayDeserializer()));
                return null;
            case "share.open":
                shares.put(name, new KafkaShareConsumer<>(Json.config(request.get("config")), new ByteArrayDeserializer(), new ByteArrayDeserializer()));
                return null;
            case "read_all":
                return readAll(request);
            default:
                if (action.startsWith("producer.")) return produce(action, name, producers.get(name), request);
                if (action.startsWith("consumer.")) return consume(action, name, consumers.get(name), request);
                if (action.startsWith("share.")) return share(action, name, shares.get(name), request);
                throw new IllegalArgumentException("no such action: " + action);
        }
    }

    private Object produce(String action, String name, KafkaProducer<byte[], byte[]> producer, JsonNode request) throws Exception {
        switch (action) {
            case "producer.send": {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (JsonNode each : request.get("records")) sent.add(producer.send(record(each)));
                producer.flush();
                List<Object> results = new ArrayList<>();
                for (Future<RecordMetadata> future : sent) {
                    RecordMetadata done = future.get();
                    Map<String, Object> result = new HashMap<>();
                    result.put("topic", done.topic());
                    result.put("partition", done.partition());
                    result.put("offset", done.hasOffset() ? done.offset() : null);
                    result.put("timestamp", done.timestamp());
                    results.add(result);
                }
                return results;
            }
            case "producer.init": producer.initTransactions(); return null;
            case "producer.begin": producer.beginTransaction(); return null;
            case "producer.commit": producer.commitTransaction(); return null;
            case "producer.abort": producer.abortTransaction(); return null;
            case "producer.send_offsets": {
                ConsumerGroupMetadata group = request.hasNonNull("consumer")
                    ? consumers.get(request.get("consumer").asText()).groupMetadata()
                    : new ConsumerGroupMetadata(request.get("group").asText());
                producer.sendOffsetsToTransaction(offsets(request.get("offsets")), group);
                return null;
            }
            case "producer.partitions": return producer.partitionsFor(request.get("topic").asText());
            case "producer.close":
                producers.remove(name);
                producer.close(Duration.ofMillis(request.path("timeout_ms").asLong(10_000)));
                return null;
            default: throw new IllegalArgumentException("no such action: " + action);
        }
    }

    private Object consume(String action, String name, KafkaConsumer<byte[], byte[]> consumer, JsonNode request) {
        switch (action) {
            case "consumer.subscribe":
                if (request.hasNonNull("pattern")) consumer.subscribe(Pattern.compile(request.get("pattern").asText()));
                else if (request.hasNonNull("re2")) consumer.subscribe(new SubscriptionPattern(request.get("re2").asText()));
                else consumer.subscribe(Json.strings(request.get("topics")));
                return null;
            case "consumer.unsubscribe": consumer.unsubscribe(); return null;
            case "consumer.assign": consumer.assign(Json.partitions(request.get("partitions"))); return null;
            case "consumer.seek":
                request.get("offsets").fields().forEachRemaining(each -> consumer.seek(Json.partition(each.getKey()), each.getValue().asLong()));
                return null;
            case "consumer.seek_to_beginning": consumer.seekToBeginning(consumer.assignment()); return null;
            case "consumer.poll": {
                List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
                if (early.containsKey(name)) records.addAll(early.remove(name));
                int wanted = request.path("min_records").asInt(1);
                long deadline = System.nanoTime() + request.path("timeout_ms").asLong(10_000) * 1_000_000;
                do {
                    long left = Math.max(0, (deadline - System.nanoTime()) / 1_000_000);
                    for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(Math.min(left, 200)))) records.add(each);
                } while (records.size() < wanted && System.nanoTime() < deadline);
                return records;
            }
            case "consumer.await_assignment": {
                // Records that come while we wait belong to the next poll.
                int wanted = request.path("count").asInt(1);
                long deadline = System.nanoTime() + request.path("timeout_ms").asLong(20_000) * 1_000_000;
                while (consumer.assignment().size() != wanted && System.nanoTime() < deadline) {
                    consumer.poll(Duration.ofMillis(50)).forEach(early.computeIfAbsent(name, key -> new ArrayList<>())::add);
                }
                return consumer.assignment();
            }
            case "consumer.commit":
                if (request.hasNonNull("offsets")) consumer.commitSync(offsets(request.get("offsets")));
                else consumer.commitSync();
                return null;
            case "consumer.committed": return consumer.committed(new java.util.HashSet<>(Json.partitions(request.get("partitions"))));
            case "consumer.position": {
                Map<String, Object> result = new HashMap<>();
                for (TopicPartition each : consumer.assignment()) result.put(Json.key(each), consumer.position(each));
                return result;
            }
            case "consumer.assignment": return consumer.assignment();
            case "consumer.end_offsets": return consumer.endOffsets(Json.partitions(request.get("partitions")));
            case "consumer.beginning_offsets": return consumer.beginningOffsets(Json.partitions(request.get("partitions")));
            case "consumer.offsets_for_times": {
                Map<TopicPartition, Long> times = new HashMap<>();
                request.get("times").fields().forEachRemaining(each -> times.put(Json.partition(each.getKey()), each.getValue().asLong()));
                return consumer.offsetsForTimes(times);
            }
            case "consumer.list_topics": return consumer.listTopics();
            case "consumer.close":
                consumers.remove(name);
                consumer.close();
                return null;
            default: throw new IllegalArgumentException("no such action: " + action);
        }
    }

    private Object share(String action, String name, KafkaShareConsumer<byte[], byte[]> consumer, JsonNode request) {
        switch (action) {
            case "share.subscribe": consumer.subscribe(Json.strings(request.get("topics"))); return null;
            case "share.poll": {
                List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
                int wanted = request.path("min_records").asInt(1);
                long deadline = System.nanoTime() + request.path("timeout_ms").asLong(10_000) * 1_000_000;
                do {
                    ConsumerRecords<byte[], byte[]> polled = consumer.poll(Duration.ofMillis(200));
                    for (ConsumerRecord<byte[], byte[]> each : polled) {
                        records.add(each);
                        unanswered.computeIfAbsent(name, key -> new HashMap<>())
                            .put(each.topic() + ":" + each.partition() + ":" + each.offset(), each);
                        if (request.hasNonNull("acknowledge")) {
                            consumer.acknowledge(each, AcknowledgeType.valueOf(request.get("acknowledge").asText()));
                        }
                    }
                    if (request.hasNonNull("acknowledge") && !polled.isEmpty()) {
                        consumer.commitSync().values().forEach(problem -> problem.ifPresent(refused -> { throw refused; }));
                    }
                } while (records.size() < wanted && System.nanoTime() < deadline);
                return records;
            }
            case "share.acknowledge":
                for (JsonNode each : request.get("records")) {
                    String place = each.get("topic").asText() + ":" + each.get("partition").asInt() + ":" + each.get("offset").asLong();
                    consumer.acknowledge(unanswered.get(name).remove(place), AcknowledgeType.valueOf(each.get("type").asText()));
                }
                return null;
            case "share.commit": {
                Map<String, Object> result = new HashMap<>();
                consumer.commitSync().forEach((partition, problem) -> result.put(Json.key(partition.topicPartition()), problem));
                return result;
            }
            case "share.close":
                shares.remove(name);
                consumer.close();
                return null;
            default: throw new IllegalArgumentException("no such action: " + action);
        }
    }

    /** Every record of the named topics, from the beginning to the end offsets at the start of the call. */
    private Object readAll(JsonNode request) {
        Map<String, Object> config = Json.config(request.get("config"));
        config.putIfAbsent("auto.offset.reset", "earliest");
        config.putIfAbsent("enable.auto.commit", "false");
        long deadline = System.nanoTime() + request.path("timeout_ms").asLong(30_000) * 1_000_000;
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (String topic : Json.strings(request.get("topics"))) {
                consumer.partitionsFor(topic).forEach(each -> partitions.add(new TopicPartition(topic, each.partition())));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
            while (!reached(consumer, ends)) {
                if (System.nanoTime() > deadline) throw new org.apache.kafka.common.errors.TimeoutException("not all records came: " + ends);
                consumer.poll(Duration.ofMillis(100)).forEach(records::add);
            }
            records.sort(java.util.Comparator.<ConsumerRecord<byte[], byte[]>, String>comparing(ConsumerRecord::topic)
                .thenComparing(ConsumerRecord::partition).thenComparing(ConsumerRecord::offset));
            return records;
        }
    }

    private static boolean reached(KafkaConsumer<byte[], byte[]> consumer, Map<TopicPartition, Long> ends) {
        return ends.entrySet().stream().allMatch(each -> consumer.position(each.getKey()) >= each.getValue());
    }

    private static ProducerRecord<byte[], byte[]> record(JsonNode node) {
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
            node.get("topic").asText(),
            node.hasNonNull("partition") ? node.get("partition").asInt() : null,
            node.hasNonNull("timestamp") ? node.get("timestamp").asLong() : null,
            Json.bytes(node.get("key")),
            Json.bytes(node.get("value")));
        for (JsonNode header : node.path("headers")) {
            record.headers().add(new RecordHeader(header.get(0).asText(), Json.bytes(header.get(1))));
        }
        return record;
    }

    static Map<TopicPartition, OffsetAndMetadata> offsets(JsonNode node) {
        Map<TopicPartition, OffsetAndMetadata> result = new HashMap<>();
        node.fields().forEachRemaining(each -> {
            JsonNode value = each.getValue();
            OffsetAndMetadata offset = value.isObject()
                ? new OffsetAndMetadata(value.get("offset").asLong(),
                    value.hasNonNull("leader_epoch") ? Optional.of(value.get("leader_epoch").asInt()) : Optional.empty(),
                    value.path("metadata").asText(""))
                : new OffsetAndMetadata(value.asLong());
            result.put(Json.partition(each.getKey()), offset);
        });
        return result;
    }
}
