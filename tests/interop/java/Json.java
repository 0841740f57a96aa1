import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.header.Header;

/** Values of Kafka's clients as JSON: bytes as base64, partitions as "topic:0", plain objects by their accessors. */
final class Json {
    static final ObjectMapper MAPPER = new ObjectMapper();
    private static final Set<String> IGNORED =
        Set.of("toString", "hashCode", "getClass", "notify", "notifyAll", "wait", "clone", "isSimpleConsumerGroup");

    private Json() { }

    static JsonNode of(Object value) {
        if (value == null) return MAPPER.nullNode();
        if (value instanceof JsonNode) return (JsonNode) value;
        if (value instanceof byte[]) return MAPPER.getNodeFactory().textNode(Base64.getEncoder().encodeToString((byte[]) value));
        if (value instanceof Boolean || value instanceof Number) return MAPPER.valueToTree(value);
        if (value instanceof Enum) return MAPPER.getNodeFactory().textNode(((Enum<?>) value).name());
        if (value instanceof CharSequence || value instanceof Uuid) return MAPPER.getNodeFactory().textNode(value.toString());
        if (value instanceof Optional) return of(((Optional<?>) value).orElse(null));
        if (value instanceof OptionalInt) return ((OptionalInt) value).isPresent() ? of(((OptionalInt) value).getAsInt()) : of(null);
        if (value instanceof OptionalLong) return ((OptionalLong) value).isPresent() ? of(((OptionalLong) value).getAsLong()) : of(null);
        if (value instanceof TopicPartition) return MAPPER.getNodeFactory().textNode(key(value));
        if (value instanceof ConsumerRecord) return record((ConsumerRecord<?, ?>) value);
        if (value instanceof Node) {
            Node node = (Node) value;
            ObjectNode result = MAPPER.createObjectNode().put("id", node.id()).put("host", node.host()).put("port", node.port());
            return result.set("rack", of(node.rack()));
        }
        if (value instanceof Throwable) return ClientHost.error((Throwable) value);
        if (value instanceof Map) {
            TreeMap<String, JsonNode> sorted = new TreeMap<>();
            ((Map<?, ?>) value).forEach((k, v) -> sorted.put(key(k), of(v)));
            ObjectNode node = MAPPER.createObjectNode();
            sorted.forEach(node::set);
            return node;
        }
        if (value instanceof Collection) {
            List<JsonNode> items = new ArrayList<>();
            for (Object each : (Collection<?>) value) items.add(of(each));
            if (value instanceof Set) items.sort(Comparator.comparing(JsonNode::toString));
            ArrayNode node = MAPPER.createArrayNode();
            items.forEach(node::add);
            return node;
        }
        return accessors(value);
    }

    static String key(Object key) {
        if (key instanceof TopicPartition) return ((TopicPartition) key).topic() + ":" + ((TopicPartition) key).partition();
        return String.valueOf(key);
    }

    private static JsonNode accessors(Object value) {
        Class<?> type = value.getClass();
        if (!type.getName().startsWith("org.apache.kafka.")) return MAPPER.getNodeFactory().textNode(value.toString());
        TreeMap<String, JsonNode> found = new TreeMap<>();
        for (Method method : type.getMethods()) {
            if (method.getParameterCount() > 0 || Modifier.isStatic(method.getModifiers()) || method.getReturnType() == void.class
                || IGNORED.contains(method.getName()) || method.getReturnType() == type
                || method.isAnnotationPresent(Deprecated.class)) continue;
            try {
                method.setAccessible(true);
                found.put(method.getName(), of(method.invoke(value)));
            } catch (ReflectiveOperationException | RuntimeException problem) {
                found.put(method.getName(), MAPPER.getNodeFactory().textNode("!" + problem));
            }
        }
        ObjectNode node = MAPPER.createObjectNode();
        found.forEach(node::set);
        return node;
    }

    private static JsonNode record(ConsumerRecord<?, ?> record) {
        ObjectNode node = MAPPER.createObjectNode();
        node.put("topic", record.topic());
        node.put("partition", record.partition());
        node.put("offset", record.offset());
        node.put("timestamp", record.timestamp());
        node.put("timestamp_type", record.timestampType().name);
        node.set("leader_epoch", of(record.leaderEpoch()));
        node.set("delivery_count", of(record.deliveryCount()));
        node.set("key", of(record.key()));
        node.set("value", of(record.value()));
        ArrayNode headers = node.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(of(header.value()));
        }
        return node;
    }

    static byte[] bytes(JsonNode node) {
        return node == null || node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    static TopicPartition partition(String text) {
        int colon = text.lastIndexOf(':');
        return new TopicPartition(text.substring(0, colon), Integer.parseInt(text.substring(colon + 1)));
    }

    static List<TopicPartition> partitions(JsonNode node) {
        List<TopicPartition> result = new ArrayList<>();
        node.forEach(each -> result.add(partition(each.asText())));
        return result;
    }

    static List<String> strings(JsonNode node) {
        List<String> result = new ArrayList<>();
        node.forEach(each -> result.add(each.asText()));
        return result;
    }

    static Map<String, Object> config(JsonNode node) {
        Map<String, Object> result = new TreeMap<>();
        if (node != null) node.fields().forEachRemaining(each -> result.put(each.getKey(), each.getValue().asText()));
        return result;
    }
}
