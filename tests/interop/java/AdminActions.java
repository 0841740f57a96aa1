import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateDelegationTokenOptions;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeConsumerGroupsOptions;
import org.apache.kafka.clients.admin.ExpireDelegationTokenOptions;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListStreamsGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.admin.UserScramCredentialAlteration;
import org.apache.kafka.clients.admin.UserScramCredentialDeletion;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.token.delegation.DelegationToken;

/** The admin client's calls; one client per configuration is kept open. */
final class AdminActions {
    private final Map<String, Admin> admins = new ConcurrentHashMap<>();

    Object run(String action, JsonNode request) throws Exception {
        Admin admin = admins.computeIfAbsent(request.get("config").toString(), key -> Admin.create(Json.config(request.get("config"))));
        switch (action.substring("admin.".length())) {
            case "create_topics": {
                List<NewTopic> topics = new ArrayList<>();
                for (JsonNode each : request.get("topics")) topics.add(newTopic(each));
                var created = admin.createTopics(topics, new CreateTopicsOptions().validateOnly(request.path("validate_only").asBoolean()));
                Map<String, Object> result = new TreeMap<>();
                for (NewTopic each : topics) {
                    created.values().get(each.name()).get();
                    Map<String, Object> topic = new HashMap<>();
                    topic.put("topic_id", created.topicId(each.name()).get());
                    topic.put("partitions", created.numPartitions(each.name()).get());
                    topic.put("replication_factor", created.replicationFactor(each.name()).get());
                    topic.put("config", config(created.config(each.name()).get()));
                    result.put(each.name(), topic);
                }
                return result;
            }
            case "delete_topics":
                if (request.hasNonNull("ids")) {
                    admin.deleteTopics(TopicCollection.ofTopicIds(
                        Json.strings(request.get("ids")).stream().map(Uuid::fromString).collect(Collectors.toList()))).all().get();
                } else {
                    admin.deleteTopics(Json.strings(request.get("topics"))).all().get();
                }
                return null;
            case "create_partitions": {
                Map<String, NewPartitions> wanted = new HashMap<>();
                request.get("topics").fields().forEachRemaining(each -> wanted.put(each.getKey(), NewPartitions.increaseTo(each.getValue().asInt())));
                admin.createPartitions(wanted).all().get();
                return null;
            }
            case "list_topics":
                return admin.listTopics(new ListTopicsOptions().listInternal(request.path("internal").asBoolean())).listings().get()
                    .stream().collect(Collectors.toMap(each -> each.name(), each -> each.topicId()));
            case "describe_topics":
                return admin.describeTopics(Json.strings(request.get("topics")), new DescribeTopicsOptions()
                    .includeAuthorizedOperations(request.path("authorized").asBoolean())).allTopicNames().get();
            case "describe_cluster": {
                var cluster = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(request.path("authorized").asBoolean()));
                Map<String, Object> result = new HashMap<>();
                result.put("cluster_id", cluster.clusterId().get());
                result.put("controller", cluster.controller().get());
                result.put("nodes", cluster.nodes().get());
                result.put("authorized_operations", cluster.authorizedOperations().get());
                return result;
            }
            case "describe_configs": {
                List<ConfigResource> resources = new ArrayList<>();
                request.get("resources").forEach(each -> resources.add(resource(each)));
                Map<String, Object> result = new TreeMap<>();
                admin.describeConfigs(resources, new DescribeConfigsOptions().includeSynonyms(request.path("synonyms").asBoolean())
                    .includeDocumentation(request.path("documentation").asBoolean())).all().get()
                    .forEach((key, value) -> result.put(key.type() + ":" + key.name(), config(value)));
                return result;
            }
            case "alter_configs": {
                Map<ConfigResource, Collection<AlterConfigOp>> changes = new HashMap<>();
                for (JsonNode each : request.get("changes")) {
                    List<AlterConfigOp> ops = new ArrayList<>();
                    for (JsonNode op : each.get("ops")) {
                        ops.add(new AlterConfigOp(new ConfigEntry(op.get(1).asText(), op.path(2).isMissingNode() ? "" : op.get(2).asText()),
                            AlterConfigOp.OpType.valueOf(op.get(0).asText())));
                    }
                    changes.put(resource(each.get("resource")), ops);
                }
                admin.incrementalAlterConfigs(changes).all().get();
                return null;
            }
            case "list_config_resources":
                return admin.listConfigResources().all().get().stream().map(each -> each.type() + ":" + each.name()).collect(Collectors.toSet());
            case "create_acls": {
                List<AclBinding> acls = new ArrayList<>();
                request.get("acls").forEach(each -> acls.add(acl(each)));
                admin.createAcls(acls).all().get();
                return null;
            }
            case "describe_acls": return sortedAcls(admin.describeAcls(aclFilter(request.path("filter"))).values().get());
            case "delete_acls": return sortedAcls(admin.deleteAcls(List.of(aclFilter(request.path("filter")))).all().get());
            case "alter_scram": {
                List<UserScramCredentialAlteration> changes = new ArrayList<>();
                for (JsonNode each : request.get("users")) {
                    ScramMechanism mechanism = ScramMechanism.fromMechanismName(each.get("mechanism").asText());
                    if (each.hasNonNull("password")) {
                        byte[] salt = Json.bytes(each.get("salt"));
                        ScramCredentialInfo info = new ScramCredentialInfo(mechanism, each.path("iterations").asInt(4096));
                        byte[] password = each.get("password").asText().getBytes(java.nio.charset.StandardCharsets.UTF_8);
                        changes.add(salt == null ? new UserScramCredentialUpsertion(each.get("user").asText(), info, password)
                            : new UserScramCredentialUpsertion(each.get("user").asText(), info, password, salt));
                    } else {
                        changes.add(new UserScramCredentialDeletion(each.get("user").asText(), mechanism));
                    }
                }
                admin.alterUserScramCredentials(changes).all().get();
                return null;
            }
            case "describe_scram": return admin.describeUserScramCredentials().all().get();
            case "alter_quotas": {
                List<ClientQuotaAlteration> changes = new ArrayList<>();
                for (JsonNode each : request.get("changes")) {
                    Map<String, String> entity = new HashMap<>();
                    each.get("entity").fields().forEachRemaining(part -> entity.put(part.getKey(), part.getValue().isNull() ? null : part.getValue().asText()));
                    List<ClientQuotaAlteration.Op> ops = new ArrayList<>();
                    each.get("ops").fields().forEachRemaining(op ->
                        ops.add(new ClientQuotaAlteration.Op(op.getKey(), op.getValue().isNull() ? null : op.getValue().asDouble())));
                    changes.add(new ClientQuotaAlteration(new ClientQuotaEntity(entity), ops));
                }
                admin.alterClientQuotas(changes).all().get();
                return null;
            }
            case "describe_quotas": {
                List<Object> result = new ArrayList<>();
                admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().forEach((entity, quotas) ->
                    result.add(Map.of("entity", entity.entries(), "quotas", quotas)));
                result.sort(java.util.Comparator.comparing(each -> Json.of(each).toString()));
                return result;
            }
            case "list_offsets": {
                Map<TopicPartition, OffsetSpec> specs = new HashMap<>();
                request.get("partitions").fields().forEachRemaining(each -> specs.put(Json.partition(each.getKey()), offsetSpec(each.getValue())));
                IsolationLevel level = request.path("read_committed").asBoolean() ? IsolationLevel.READ_COMMITTED : IsolationLevel.READ_UNCOMMITTED;
                return admin.listOffsets(specs, new ListOffsetsOptions(level)).all().get();
            }
            case "delete_records": {
                Map<TopicPartition, RecordsToDelete> wanted = new HashMap<>();
                request.get("offsets").fields().forEachRemaining(each -> wanted.put(Json.partition(each.getKey()), RecordsToDelete.beforeOffset(each.getValue().asLong())));
                Map<String, Object> result = new TreeMap<>();
                for (var each : admin.deleteRecords(wanted).lowWatermarks().entrySet()) {
                    result.put(Json.key(each.getKey()), each.getValue().get().lowWatermark());
                }
                return result;
            }
            case "list_groups": return admin.listGroups().all().get().stream().collect(Collectors.toSet());
            case "describe_consumer_groups":
                return admin.describeConsumerGroups(Json.strings(request.get("groups")), new DescribeConsumerGroupsOptions()
                    .includeAuthorizedOperations(request.path("authorized").asBoolean())).all().get();
            case "describe_classic_groups": return admin.describeClassicGroups(Json.strings(request.get("groups"))).all().get();
            case "describe_share_groups": return admin.describeShareGroups(Json.strings(request.get("groups"))).all().get();
            case "list_group_offsets": {
                Map<String, ListConsumerGroupOffsetsSpec> specs = new HashMap<>();
                Json.strings(request.get("groups")).forEach(each -> specs.put(each, new ListConsumerGroupOffsetsSpec()));
                return admin.listConsumerGroupOffsets(specs).all().get();
            }
            case "alter_group_offsets":
                admin.alterConsumerGroupOffsets(request.get("group").asText(), ClientActions.offsets(request.get("offsets"))).all().get();
                return null;
            case "delete_group_offsets":
                admin.deleteConsumerGroupOffsets(request.get("group").asText(), new HashSet<>(Json.partitions(request.get("partitions")))).all().get();
                return null;
            case "delete_groups": admin.deleteConsumerGroups(Json.strings(request.get("groups"))).all().get(); return null;
            case "remove_members": {
                if (request.hasNonNull("instances")) {
                    Set<MemberToRemove> members = Json.strings(request.get("instances")).stream().map(MemberToRemove::new).collect(Collectors.toSet());
                    admin.removeMembersFromConsumerGroup(request.get("group").asText(), new RemoveMembersFromConsumerGroupOptions(members)).all().get();
                } else {
                    admin.removeMembersFromConsumerGroup(request.get("group").asText(), new RemoveMembersFromConsumerGroupOptions()).all().get();
                }
                return null;
            }
            case "list_share_group_offsets": {
                Map<String, ListShareGroupOffsetsSpec> specs = new HashMap<>();
                Json.strings(request.get("groups")).forEach(each -> specs.put(each, new ListShareGroupOffsetsSpec()));
                return admin.listShareGroupOffsets(specs).all().get();
            }
            case "alter_share_group_offsets": {
                Map<TopicPartition, Long> offsets = new HashMap<>();
                request.get("offsets").fields().forEachRemaining(each -> offsets.put(Json.partition(each.getKey()), each.getValue().asLong()));
                admin.alterShareGroupOffsets(request.get("group").asText(), offsets).all().get();
                return null;
            }
            case "delete_share_groups": admin.deleteShareGroups(Json.strings(request.get("groups"))).all().get(); return null;
            case "describe_streams_groups": return admin.describeStreamsGroups(Json.strings(request.get("groups"))).all().get();
            case "list_streams_group_offsets": {
                Map<String, ListStreamsGroupOffsetsSpec> specs = new HashMap<>();
                Json.strings(request.get("groups")).forEach(each -> specs.put(each, new ListStreamsGroupOffsetsSpec()));
                return admin.listStreamsGroupOffsets(specs).all().get();
            }
            case "alter_streams_group_offsets":
                admin.alterStreamsGroupOffsets(request.get("group").asText(), ClientActions.offsets(request.get("offsets"))).all().get();
                return null;
            case "delete_streams_group_offsets":
                admin.deleteStreamsGroupOffsets(request.get("group").asText(), new HashSet<>(Json.partitions(request.get("partitions")))).all().get();
                return null;
            case "delete_streams_groups": admin.deleteStreamsGroups(Json.strings(request.get("groups"))).all().get(); return null;
            case "describe_producers": {
                Map<String, Object> result = new TreeMap<>();
                admin.describeProducers(Json.partitions(request.get("partitions"))).all().get()
                    .forEach((key, value) -> result.put(Json.key(key), value.activeProducers()));
                return result;
            }
            case "list_transactions": return admin.listTransactions().all().get().stream().collect(Collectors.toSet());
            case "describe_transactions": return admin.describeTransactions(Json.strings(request.get("ids"))).all().get();
            case "abort_transaction":
                admin.abortTransaction(new AbortTransactionSpec(Json.partition(request.get("partition").asText()), request.get("producer_id").asLong(),
                    (short) request.get("producer_epoch").asInt(), request.get("coordinator_epoch").asInt())).all().get();
                return null;
            case "fence_producers": admin.fenceProducers(Json.strings(request.get("ids"))).all().get(); return null;
            case "describe_features": {
                var features = admin.describeFeatures().featureMetadata().get();
                Map<String, Object> result = new HashMap<>();
                result.put("finalized", features.finalizedFeatures());
                result.put("supported", features.supportedFeatures());
                result.put("epoch", features.finalizedFeaturesEpoch());
                return result;
            }
            case "update_features": {
                Map<String, FeatureUpdate> updates = new HashMap<>();
                for (JsonNode each : request.get("features")) {
                    updates.put(each.get("name").asText(), new FeatureUpdate((short) each.get("level").asInt(),
                        FeatureUpdate.UpgradeType.valueOf(each.path("type").asText("UPGRADE"))));
                }
                admin.updateFeatures(updates, new UpdateFeaturesOptions().validateOnly(request.path("validate_only").asBoolean())).all().get();
                return null;
            }
            case "describe_quorum": return admin.describeMetadataQuorum().quorumInfo().get();
            case "describe_log_dirs":
                return admin.describeLogDirs(admin.describeCluster().nodes().get().stream().map(each -> each.id()).collect(Collectors.toList()))
                    .allDescriptions().get();
            case "elect_leaders": {
                Set<TopicPartition> partitions = request.hasNonNull("partitions") ? new HashSet<>(Json.partitions(request.get("partitions"))) : null;
                return admin.electLeaders(ElectionType.valueOf(request.path("type").asText("PREFERRED")), partitions).partitions().get();
            }
            case "alter_reassignments": {
                Map<TopicPartition, Optional<NewPartitionReassignment>> wanted = new HashMap<>();
                request.get("partitions").fields().forEachRemaining(each -> {
                    List<Integer> replicas = new ArrayList<>();
                    each.getValue().forEach(id -> replicas.add(id.asInt()));
                    wanted.put(Json.partition(each.getKey()),
                        each.getValue().isNull() ? Optional.empty() : Optional.of(new NewPartitionReassignment(replicas)));
                });
                admin.alterPartitionReassignments(wanted).all().get();
                return null;
            }
            case "list_reassignments": return admin.listPartitionReassignments().reassignments().get();
            case "unregister_broker": admin.unregisterBroker(request.get("broker").asInt()).all().get(); return null;
            case "create_token": {
                CreateDelegationTokenOptions options = new CreateDelegationTokenOptions().maxLifetimeMs(request.path("max_lifetime_ms").asLong(-1));
                if (request.hasNonNull("renewers")) options.renewers(Json.strings(request.get("renewers")).stream().map(AdminActions::principal).collect(Collectors.toList()));
                if (request.hasNonNull("owner")) options.owner(principal(request.get("owner").asText()));
                return token(admin.createDelegationToken(options).delegationToken().get());
            }
            case "renew_token": return admin.renewDelegationToken(Json.bytes(request.get("hmac"))).expiryTimestamp().get();
            case "expire_token":
                return admin.expireDelegationToken(Json.bytes(request.get("hmac")), new ExpireDelegationTokenOptions()
                    .expiryTimePeriodMs(request.path("period_ms").asLong(-1))).expiryTimestamp().get();
            case "describe_tokens": {
                List<Object> result = new ArrayList<>();
                for (DelegationToken each : admin.describeDelegationToken().delegationTokens().get()) result.add(token(each));
                return result;
            }
            case "close": {
                Admin gone = admins.remove(request.get("config").toString());
                if (gone != null) gone.close();
                return null;
            }
            default: throw new IllegalArgumentException("no such action: " + action);
        }
    }

    private static NewTopic newTopic(JsonNode node) {
        NewTopic topic;
        if (node.hasNonNull("assignments")) {
            Map<Integer, List<Integer>> assignments = new HashMap<>();
            node.get("assignments").fields().forEachRemaining(each -> {
                List<Integer> replicas = new ArrayList<>();
                each.getValue().forEach(id -> replicas.add(id.asInt()));
                assignments.put(Integer.parseInt(each.getKey()), replicas);
            });
            topic = new NewTopic(node.get("name").asText(), assignments);
        } else {
            topic = new NewTopic(node.get("name").asText(),
                node.hasNonNull("partitions") ? Optional.of(node.get("partitions").asInt()) : Optional.empty(),
                node.hasNonNull("replication_factor") ? Optional.of((short) node.get("replication_factor").asInt()) : Optional.empty());
        }
        Map<String, String> configs = new HashMap<>();
        node.path("config").fields().forEachRemaining(each -> configs.put(each.getKey(), each.getValue().asText()));
        return topic.configs(configs);
    }

    private static ConfigResource resource(JsonNode node) {
        return new ConfigResource(ConfigResource.Type.valueOf(node.get(0).asText()), node.get(1).asText());
    }

    private static Object config(Config config) {
        Map<String, Object> result = new TreeMap<>();
        if (config != null) config.entries().forEach(each -> result.put(each.name(), each));
        return result;
    }

    private static AclBinding acl(JsonNode node) {
        return new AclBinding(
            new ResourcePattern(ResourceType.valueOf(node.get("type").asText()), node.get("name").asText(),
                PatternType.valueOf(node.path("pattern").asText("LITERAL"))),
            new AccessControlEntry(node.get("principal").asText(), node.path("host").asText("*"),
                AclOperation.valueOf(node.get("operation").asText()), AclPermissionType.valueOf(node.path("permission").asText("ALLOW"))));
    }

    private static AclBindingFilter aclFilter(JsonNode node) {
        return new AclBindingFilter(
            new ResourcePatternFilter(ResourceType.valueOf(node.path("type").asText("ANY")), node.path("name").asText(null),
                PatternType.valueOf(node.path("pattern").asText("ANY"))),
            new AccessControlEntryFilter(node.path("principal").asText(null), node.path("host").asText(null),
                AclOperation.valueOf(node.path("operation").asText("ANY")), AclPermissionType.valueOf(node.path("permission").asText("ANY"))));
    }

    private static Object sortedAcls(Collection<AclBinding> acls) {
        List<Map<String, Object>> result = new ArrayList<>();
        for (AclBinding each : acls) {
            Map<String, Object> acl = new TreeMap<>();
            acl.put("type", each.pattern().resourceType());
            acl.put("name", each.pattern().name());
            acl.put("pattern", each.pattern().patternType());
            acl.put("principal", each.entry().principal());
            acl.put("host", each.entry().host());
            acl.put("operation", each.entry().operation());
            acl.put("permission", each.entry().permissionType());
            result.add(acl);
        }
        result.sort(java.util.Comparator.comparing(Object::toString));
        return result;
    }

    private static OffsetSpec offsetSpec(JsonNode node) {
        if (node.isNumber()) return OffsetSpec.forTimestamp(node.asLong());
        switch (node.asText()) {
            case "earliest": return OffsetSpec.earliest();
            case "latest": return OffsetSpec.latest();
            case "max_timestamp": return OffsetSpec.maxTimestamp();
            case "earliest_local": return OffsetSpec.earliestLocal();
            case "latest_tiered": return OffsetSpec.latestTiered();
            default: throw new IllegalArgumentException(node.asText());
        }
    }

    private static KafkaPrincipal principal(String text) {
        int colon = text.indexOf(':');
        return new KafkaPrincipal(text.substring(0, colon), text.substring(colon + 1));
    }

    private static Object token(DelegationToken token) {
        Map<String, Object> result = new TreeMap<>();
        result.put("hmac", token.hmac());
        result.put("token_id", token.tokenInfo().tokenId());
        result.put("owner", token.tokenInfo().ownerAsString());
        result.put("requester", token.tokenInfo().tokenRequesterAsString());
        result.put("renewers", token.tokenInfo().renewersAsString());
        result.put("issue_timestamp", token.tokenInfo().issueTimestamp());
        result.put("expiry_timestamp", token.tokenInfo().expiryTimestamp());
        result.put("max_timestamp", token.tokenInfo().maxTimestamp());
        return result;
    }
}
