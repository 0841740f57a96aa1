import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.SortedMap;
import java.util.TreeMap;
import org.apache.kafka.common.message.CreateTopicsRequestData.CreatableTopic;
import org.apache.kafka.common.message.StreamsGroupDescribeResponseData;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.group.generated.StreamsGroupTopologyValue;
import org.apache.kafka.coordinator.group.streams.StreamsTopology;
import org.apache.kafka.coordinator.group.streams.TopologyMetadata;
import org.apache.kafka.coordinator.group.streams.assignor.AssignmentMemberSpec;
import org.apache.kafka.coordinator.group.streams.assignor.GroupSpecImpl;
import org.apache.kafka.coordinator.group.streams.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;
import org.apache.kafka.coordinator.group.streams.topics.ConfiguredInternalTopic;
import org.apache.kafka.coordinator.group.streams.topics.ConfiguredSubtopology;
import org.apache.kafka.coordinator.group.streams.topics.ConfiguredTopology;
import org.apache.kafka.coordinator.group.streams.topics.InternalTopicManager;
import org.apache.kafka.timeline.SnapshotRegistry;
import org.apache.kafka.timeline.TimelineHashMap;
import org.slf4j.helpers.NOPLogger;

/** What Kafka's own classes make of topologies and of assignments: a case for each line in, an answer for each line out. */
public final class StreamsOracle {
    private StreamsOracle() { }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode question = Json.MAPPER.readTree(line);
            ObjectNode answer;
            try {
                answer = question.has("keys") ? timeline(question)
                    : question.has("members") ? assign(question) : configure(question);
            } catch (Exception problem) {
                Errors error = Errors.forException(problem);
                answer = Json.MAPPER.createObjectNode().put("error", error.code());
                answer.put("message", error == Errors.UNKNOWN_SERVER_ERROR ? null : problem.getMessage());
            }
            out.println(answer);
        }
    }

    private static ObjectNode timeline(JsonNode question) {
        TimelineHashMap<String, String> map = new TimelineHashMap<>(new SnapshotRegistry(new LogContext()), 0);
        question.get("keys").forEach(key -> map.put(key.asText(), ""));
        ObjectNode answer = Json.MAPPER.createObjectNode();
        ArrayNode order = answer.putArray("order");
        map.keySet().forEach(order::add);
        return answer;
    }

    private static ObjectNode assign(JsonNode question) {
        Map<String, AssignmentMemberSpec> members = new HashMap<>();
        question.get("members").properties().forEach(each -> {
            JsonNode spec = each.getValue();
            members.put(each.getKey(), new AssignmentMemberSpec(Optional.empty(), Optional.empty(), tasks(spec.get("active")),
                tasks(spec.get("standby")), Map.of(), spec.get("process").asText(), Map.of(), Map.of(), Map.of()));
        });
        SortedMap<String, ConfiguredSubtopology> subtopologies = new TreeMap<>();
        question.get("subtopologies").properties().forEach(each -> {
            boolean stateful = each.getValue().get(1).asBoolean();
            ConfiguredInternalTopic changelog = new ConfiguredInternalTopic("changelog", 1, Optional.empty(), Map.of());
            subtopologies.put(each.getKey(), new ConfiguredSubtopology(each.getValue().get(0).asInt(), Set.of("source"), Map.of(),
                Set.of(), stateful ? Map.of("changelog", changelog) : Map.of()));
        });
        Map<String, String> configs = Map.of("num.standby.replicas", question.get("standbys").asText());
        ObjectNode answer = Json.MAPPER.createObjectNode();
        Map<String, MemberAssignment> assigned = new StickyTaskAssignor().assign(new GroupSpecImpl(members, configs),
            new TopologyMetadata(CoordinatorMetadataImage.EMPTY, subtopologies)).members();
        assigned.forEach((member, given) -> {
            ObjectNode node = answer.putObject(member);
            node.set("active", sorted(given.activeTasks()));
            node.set("standby", sorted(given.standbyTasks()));
            node.set("warmup", sorted(given.warmupTasks()));
        });
        return answer;
    }

    private static Map<String, Set<Integer>> tasks(JsonNode node) {
        Map<String, Set<Integer>> found = new HashMap<>();
        node.properties().forEach(each -> {
            Set<Integer> partitions = new HashSet<>();
            each.getValue().forEach(partition -> partitions.add(partition.asInt()));
            found.put(each.getKey(), partitions);
        });
        return found;
    }

    private static JsonNode sorted(Map<String, Set<Integer>> tasks) {
        ObjectNode node = Json.MAPPER.createObjectNode();
        new TreeMap<>(tasks).forEach((name, partitions) -> {
            ArrayNode list = node.putArray(name);
            partitions.stream().sorted().forEach(list::add);
        });
        return node;
    }

    private static ObjectNode configure(JsonNode question) {
        byte[] bytes = Base64.getDecoder().decode(question.get("topology").asText());
        StreamsTopology topology = StreamsTopology.fromRecord(
            new StreamsGroupTopologyValue(new ByteBufferAccessor(ByteBuffer.wrap(bytes)), (short) 0));
        Map<String, Integer> topics = new HashMap<>();
        question.get("topics").properties().forEach(each -> topics.put(each.getKey(), each.getValue().asInt()));
        ConfiguredTopology configured = InternalTopicManager.configureTopics(NOPLogger.NOP_LOGGER, "g", "m", 7L, topology,
            image(topics), Time.SYSTEM);
        ObjectNode answer = Json.MAPPER.createObjectNode();
        ObjectNode counts = answer.putObject("tasks");
        configured.subtopologies().ifPresent(found -> found.forEach((id, each) -> counts.put(id, each.numberOfTasks())));
        ArrayNode created = answer.putArray("create");
        for (CreatableTopic each : configured.internalTopicsToBeCreated().values()) {
            ObjectNode topic = created.addObject().put("name", each.name()).put("partitions", each.numPartitions());
            topic.put("replication", each.replicationFactor());
            ObjectNode configs = topic.putObject("configs");
            each.configs().forEach(config -> configs.put(config.name(), config.value()));
        }
        configured.topicConfigurationException().ifPresent(
            problem -> answer.put("status", problem.status().code()).put("detail", problem.getMessage()));
        answer.put("described", described(configured.asStreamsGroupDescribeTopology()));
        answer.put("sent", described(topology.asStreamsGroupDescribeTopology()));
        ArrayNode required = answer.putArray("required");
        topology.requiredTopics().stream().sorted().forEach(required::add);
        ObjectNode readers = answer.putObject("readers");
        topology.sourceTopicMap().forEach((topic, each) -> readers.put(topic, each.subtopologyId()));
        return answer;
    }

    private static String described(StreamsGroupDescribeResponseData.Topology topology) {
        StreamsGroupDescribeResponseData response = new StreamsGroupDescribeResponseData();
        response.groups().add(new StreamsGroupDescribeResponseData.DescribedGroup().setTopology(topology));
        ByteBuffer buffer = MessageUtil.toByteBufferAccessor(response, (short) 0).buffer();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return Base64.getEncoder().encodeToString(bytes);
    }

    private static CoordinatorMetadataImage image(Map<String, Integer> topics) {
        return proxy(CoordinatorMetadataImage.class, (name, argument) -> {
            Integer count = topics.get((String) argument);
            return Optional.ofNullable(count).map(found -> proxy(CoordinatorMetadataImage.TopicMetadata.class,
                (method, nothing) -> method.equals("partitionCount") ? found : null));
        });
    }

    private interface Answer {
        Object to(String method, Object argument);
    }

    private static <T> T proxy(Class<T> type, Answer answer) {
        return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type},
            (self, method, arguments) -> answer.to(method.getName(), arguments == null ? null : arguments[0])));
    }
}
