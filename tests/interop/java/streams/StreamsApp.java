import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Three applications of Kafka Streams over the same topic of words, as members of streams groups: `loud` writes each
 * word in capitals, `count` counts the words, `exact` counts them in transactions. What one of them writes goes to the
 * topic of its name. Says each change of state; ends with its standard input.
 *
 * Arguments: bootstrap, input topic, directory for state.
 */
public final class StreamsApp {
    private StreamsApp() { }

    public static void main(String[] args) throws Exception {
        List<KafkaStreams> running = new ArrayList<>();
        for (String name : List.of("loud", "count", "exact")) {
            KafkaStreams streams = new KafkaStreams(topology(name, args[1]), config(name, args));
            streams.setStateListener((now, before) -> say(name + " " + now));
            streams.setUncaughtExceptionHandler(problem -> {
                say(name + " died of " + problem);
                problem.printStackTrace();
                return StreamThreadExceptionResponse.REPLACE_THREAD;
            });
            running.add(streams);
            streams.start();
        }
        while (System.in.read() >= 0) { }
        for (KafkaStreams each : running) each.close();
        say("closed");
        Runtime.getRuntime().halt(0);
    }

    private static synchronized void say(String what) {
        System.out.println(what);
        System.out.flush();
    }

    private static Topology topology(String name, String input) {
        StreamsBuilder builder = new StreamsBuilder();
        if (name.equals("loud")) {
            builder.<String, String>stream(input).mapValues(word -> word.toUpperCase(Locale.ROOT)).to(name);
            return builder.build();
        }
        Materialized<String, Long, KeyValueStore<Bytes, byte[]>> store = name.equals("exact")
            ? Materialized.as(Stores.inMemoryKeyValueStore("counts")) : Materialized.as("counts");
        builder.<String, String>stream(input)
            .groupBy((key, word) -> word, Grouped.as("by-word"))
            .count(store.withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream()
            .mapValues(count -> count.toString())
            .to(name);
        return builder.build();
    }

    private static Properties config(String name, String[] args) {
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("application.id", name + "-app");
        config.put("group.protocol", "streams");
        config.put("state.dir", args[2] + "/" + name);
        config.put("default.key.serde", Serdes.String().getClass());
        config.put("default.value.serde", Serdes.String().getClass());
        config.put("auto.offset.reset", "earliest");
        config.put("commit.interval.ms", "100");
        config.put("statestore.cache.max.bytes", "0");
        config.put("max.poll.records", "50");
        if (name.equals("exact")) {
            config.put("processing.guarantee", "exactly_once_v2");
            config.put("producer.transaction.timeout.ms", "5000");
        }
        return config;
    }
}
