import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * Consumes, transforms and produces in transactions until it is killed or anything goes wrong; says so after each
 * commit. Arguments: bootstrap, input topic, output topic, group, transactional id, group protocol.
 */
public final class EosLoop {
    public static void main(String[] args) throws Exception {
        Properties reading = new Properties();
        reading.put("bootstrap.servers", args[0]);
        reading.put("group.id", args[3]);
        reading.put("group.protocol", args[5]);
        reading.put("enable.auto.commit", "false");
        reading.put("auto.offset.reset", "earliest");
        reading.put("isolation.level", "read_committed");
        reading.put("max.poll.records", "20");
        if (args[5].equals("classic")) {
            reading.put("session.timeout.ms", "3000");
            reading.put("heartbeat.interval.ms", "500");
        }
        reading.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        reading.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        Properties writing = new Properties();
        writing.put("bootstrap.servers", args[0]);
        writing.put("transactional.id", args[4]);
        writing.put("transaction.timeout.ms", "20000");
        writing.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        writing.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        try (KafkaProducer<byte[], String> producer = new KafkaProducer<>(writing);
                KafkaConsumer<byte[], String> consumer = new KafkaConsumer<>(reading)) {
            producer.initTransactions();
            consumer.subscribe(List.of(args[1]));
            while (true) {
                ConsumerRecords<byte[], String> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<byte[], String> record : records) {
                    producer.send(new ProducerRecord<>(args[2], record.partition(), null, record.value() + "!"));
                    offsets.put(
                            new TopicPartition(record.topic(), record.partition()),
                            new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                producer.commitTransaction();
                System.out.println("committed " + records.count());
            }
        } catch (Exception error) {
            System.out.println("died " + error);
            Runtime.getRuntime().halt(1); // as a crash would, without leaving the group
        }
    }
}
