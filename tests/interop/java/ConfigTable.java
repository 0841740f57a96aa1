import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.server.config.DynamicBrokerConfig;
import org.apache.kafka.server.config.QuotaConfig;
import org.apache.kafka.server.config.ServerTopicConfigSynonyms;
import org.apache.kafka.server.metrics.ClientMetricsConfigs;
import org.apache.kafka.storage.internals.log.LogConfig;

/** Prints every config that Kafka defines, one JSON array per line: kind, name, type, default, allowed, mode, synonym, internal. */
public class ConfigTable {
    public static void main(String[] args) {
        print("topic", LogConfig.configKeys(), Map.of(), ServerTopicConfigSynonyms.TOPIC_CONFIG_SYNONYMS);
        Map<String, String> groupSynonyms = new TreeMap<>();
        GroupConfig.ALL_GROUP_CONFIG_SYNONYMS.forEach((name, synonym) -> synonym.ifPresent(each -> groupSynonyms.put(name, each)));
        print("group", GroupConfig.CONFIG_DEF.configKeys(), Map.of(), groupSynonyms);
        print("client_metrics", ClientMetricsConfigs.configDef().configKeys(), Map.of(), Map.of());
        Map<String, String> modes = DynamicBrokerConfig.dynamicConfigUpdateModes();
        print("broker", kafka.server.KafkaConfig.configDef().configKeys(), modes, Map.of());
        print("broker", QuotaConfig.brokerQuotaConfigs().configKeys(), modes, Map.of());
    }

    private static void print(String kind, Map<String, ConfigDef.ConfigKey> keys, Map<String, String> modes, Map<String, String> synonyms) {
        new TreeMap<>(keys).forEach((name, key) -> {
            Object value = key.defaultValue == ConfigDef.NO_DEFAULT_VALUE ? "<required>"
                : key.defaultValue == null ? null : ConfigDef.convertToString(key.defaultValue, key.type);
            Object[] row = {kind, name, key.type.name(), value, key.validator == null ? "" : key.validator.toString(),
                modes.getOrDefault(name, "read-only"), synonyms.get(name), key.internalConfig};
            System.out.println(Json.of(Arrays.asList(row)));
        });
    }
}
