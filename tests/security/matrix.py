"""Every API with the operations that it requires, requested by six kinds of principals.

The same requests go to Apache Kafka (`tools/record_security_answers.py` records the responses) and to ottla. Each cell
has its own resources and principal, so that cells do not affect each other.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ottla.client.auth import Login, Security
from ottla.client.connection import BrokerConnection, ConnectionFailedError
from ottla.cluster.security.acls import AclOperation as Op
from ottla.cluster.security.acls import AclPermission, PatternType
from ottla.cluster.security.acls import ResourceType as Kind
from ottla.protocol.api import response_class
from ottla.protocol.messages import (
    k00_produce,
    k01_fetch,
    k02_list_offsets,
    k03_metadata,
    k08_offset_commit,
    k09_offset_fetch,
    k19_create_topics,
    k20_delete_topics,
    k21_delete_records,
    k23_offset_for_leader_epoch,
    k24_add_partitions_to_txn,
    k27_write_txn_markers,
    k28_txn_offset_commit,
    k29_describe_acls,
    k30_create_acls,
    k31_delete_acls,
    k32_describe_configs,
    k33_alter_configs,
    k37_create_partitions,
    k38_create_delegation_token,
    k41_describe_delegation_token,
    k43_elect_leaders,
    k44_incremental_alter_configs,
    k45_alter_partition_reassignments,
    k47_offset_delete,
    k48_describe_client_quotas,
    k49_alter_client_quotas,
    k51_alter_user_scram_credentials,
    k55_describe_quorum,
    k57_update_features,
    k61_describe_producers,
    k75_describe_topic_partitions,
    k78_share_fetch,
    k79_share_acknowledge,
    k83_initialize_share_group_state,
    k84_read_share_group_state,
    k85_write_share_group_state,
    k86_delete_share_group_state,
    k87_read_share_group_state_summary,
    k88_streams_group_heartbeat,
    k90_describe_share_group_offsets,
    k91_alter_share_group_offsets,
    k92_delete_share_group_offsets,
)
from ottla.protocol.messages.k10_find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.k12_heartbeat import HeartbeatRequest
from ottla.protocol.messages.k13_leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.k14_sync_group import SyncGroupRequest
from ottla.protocol.messages.k15_describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.k16_list_groups import ListGroupsRequest
from ottla.protocol.messages.k22_init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.k25_add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.k26_end_txn import EndTxnRequest
from ottla.protocol.messages.k34_alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.k35_describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.messages.k39_renew_delegation_token import RenewDelegationTokenRequest
from ottla.protocol.messages.k40_expire_delegation_token import ExpireDelegationTokenRequest
from ottla.protocol.messages.k42_delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.k46_list_partition_reassignments import ListPartitionReassignmentsRequest
from ottla.protocol.messages.k50_describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from ottla.protocol.messages.k60_describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.k64_unregister_broker import UnregisterBrokerRequest
from ottla.protocol.messages.k65_describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.k66_list_transactions import ListTransactionsRequest
from ottla.protocol.messages.k68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from ottla.protocol.messages.k69_consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.k74_list_config_resources import ListConfigResourcesRequest
from ottla.protocol.messages.k76_share_group_heartbeat import ShareGroupHeartbeatRequest
from ottla.protocol.messages.k77_share_group_describe import ShareGroupDescribeRequest
from ottla.protocol.messages.k80_add_raft_voter import AddRaftVoterRequest
from ottla.protocol.messages.k81_remove_raft_voter import RemoveRaftVoterRequest
from ottla.protocol.messages.k89_streams_group_describe import StreamsGroupDescribeRequest
from ottla.protocol.schema import ZERO_UUID, Message, Struct, Uuid
from ottla.records.builder import BatchBuilder

if TYPE_CHECKING:
    from collections.abc import Callable

ADMIN, ADMIN_PASSWORD = "admin", "admin-secret"
KINDS = ("none", "denied", "exact", "prefixed", "implied", "super")
IMPLIED_BY = {Op.DESCRIBE: Op.ALTER, Op.DESCRIBE_CONFIGS: Op.ALTER_CONFIGS}
CLUSTER_NAME = "kafka-cluster"
NO_TOPIC = Uuid(b"\x11" * 16)
MEMBER = "AAAAAAAAAAAAAAAAAAAAAQ"
RETRY = {14, 15, 16}
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: a topic that is being made."""

Need = tuple[Op, Kind, str]


@dataclass(slots=True)
class Cell:
    """The names of one cell; all have the cell's prefix."""

    prefix: str
    topic_id: Uuid = field(default=ZERO_UUID)

    @property
    def topic(self) -> str:
        return f"{self.prefix}-topic"

    @property
    def missing(self) -> str:
        return f"{self.prefix}-missing"

    @property
    def group(self) -> str:
        return f"{self.prefix}-group"

    @property
    def txn(self) -> str:
        return f"{self.prefix}-txn"


@dataclass(frozen=True, slots=True)
class Case:
    """One request: its API and version, the required operations, and how it is made."""

    name: str
    version: int
    needs: Callable[[Cell], list[Need]]
    ask: Callable[[Cell], Message]


def _topic(op: Op) -> Callable[[Cell], list[Need]]:
    return lambda c: [(op, Kind.TOPIC, c.topic), (op, Kind.TOPIC, c.missing)]


def _group(op: Op) -> Callable[[Cell], list[Need]]:
    return lambda c: [(op, Kind.GROUP, c.group)]


def _txn(op: Op) -> Callable[[Cell], list[Need]]:
    return lambda c: [(op, Kind.TRANSACTIONAL_ID, c.txn)]


def _cluster(op: Op) -> Callable[[Cell], list[Need]]:
    return lambda c: [(op, Kind.CLUSTER, CLUSTER_NAME)]


def _all(*needs: Callable[[Cell], list[Need]]) -> Callable[[Cell], list[Need]]:
    return lambda c: [need for member_value in needs for need in member_value(c)]


def _batch(*, transactional: bool = False) -> bytes:
    builder = BatchBuilder(
        **({"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True} if transactional else {})
    )
    builder.append(b"key", b"value", timestamp=1_700_000_000_000)
    return bytes(builder.build())


def _produce(c: Cell, *, by_id: bool = False, transactional: bool = False) -> Message:
    data = k00_produce.PartitionProduceData(index=0, records=_batch(transactional=transactional))
    if by_id:
        topics = [
            k00_produce.TopicProduceData(topic_id=topic_id, partition_data=[data])
            for topic_id in (c.topic_id, NO_TOPIC)
        ]
    else:
        topics = [k00_produce.TopicProduceData(name=name, partition_data=[data]) for name in (c.topic, c.missing)]
    return k00_produce.ProduceRequest(
        transactional_id=c.txn if transactional else None, acks=-1, timeout_ms=5000, topic_data=topics
    )


def _share_fetch(c: Cell, session_epoch: int) -> Message:
    partition = k78_share_fetch.FetchPartition(partition_index=0)
    # Only a topic that exists: over the id of none Kafka trips, and fails the fetch as a whole.
    topics = [k78_share_fetch.FetchTopic(topic_id=c.topic_id, partitions=[partition])]
    return k78_share_fetch.ShareFetchRequest(
        group_id=c.group,
        member_id=MEMBER,
        share_session_epoch=session_epoch,
        max_wait_ms=3000,
        min_bytes=1,
        max_bytes=1000,
        max_records=10,
        batch_size=10,
        topics=topics,
    )


def _share_acknowledge(c: Cell) -> Message:
    batch = k79_share_acknowledge.AcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=[1])
    partition = k79_share_acknowledge.AcknowledgePartition(partition_index=0, acknowledgement_batches=[batch])
    topic = k79_share_acknowledge.AcknowledgeTopic(topic_id=c.topic_id, partitions=[partition])
    return k79_share_acknowledge.ShareAcknowledgeRequest(
        group_id=c.group, member_id=MEMBER, share_session_epoch=5, topics=[topic]
    )


def _streams_heartbeat(c: Cell, *, changelogs: bool = False) -> Message:
    subtopology = k88_streams_group_heartbeat.Subtopology(subtopology_id="0", source_topics=[c.topic])
    if changelogs:
        subtopology.state_changelog_topics = [k88_streams_group_heartbeat.TopicInfo(name=c.missing)]
    return k88_streams_group_heartbeat.StreamsGroupHeartbeatRequest(
        group_id=c.group,
        member_id=MEMBER,
        process_id="process",
        rebalance_timeout_ms=10_000,
        topology=k88_streams_group_heartbeat.Topology(subtopologies=[subtopology]),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    )


def _share_state(name: str, version: int, request: Any, topic: Any, partition: Any) -> Case:
    def ask(c: Cell) -> Message:
        topics = [topic(topic_id=c.topic_id, partitions=[partition(partition=0)])]
        result: Message = request(group_id=c.group, topics=topics)
        return result

    return Case(name, version, _cluster(Op.CLUSTER_ACTION), ask)


def _describe_share_offsets(c: Cell) -> Message:
    topics = [
        k90_describe_share_group_offsets.DescribeShareGroupOffsetsRequestTopic(topic_name=topic_name, partitions=[0])
        for topic_name in (c.topic, c.missing)
    ]
    return k90_describe_share_group_offsets.DescribeShareGroupOffsetsRequest(
        groups=[k90_describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(group_id=c.group, topics=topics)]
    )


def _alter_share_offsets(c: Cell) -> Message:
    partition = k91_alter_share_group_offsets.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
    return k91_alter_share_group_offsets.AlterShareGroupOffsetsRequest(
        group_id=c.group,
        topics=[
            k91_alter_share_group_offsets.AlterShareGroupOffsetsRequestTopic(
                topic_name=topic_name, partitions=[partition]
            )
            for topic_name in (c.topic, c.missing)
        ],
    )


def _fetch(c: Cell, *, by_id: bool = False) -> Message:
    partition = k01_fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    if by_id:
        topics = [
            k01_fetch.FetchTopic(topic_id=topic_id, partitions=[partition]) for topic_id in (c.topic_id, NO_TOPIC)
        ]
    else:
        topics = [k01_fetch.FetchTopic(topic=topic, partitions=[partition]) for topic in (c.topic, c.missing)]
    return k01_fetch.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1000, session_epoch=-1, topics=topics)


def _list_offsets(c: Cell) -> Message:
    partition = k02_list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
    return k02_list_offsets.ListOffsetsRequest(
        replica_id=-1,
        topics=[k02_list_offsets.ListOffsetsTopic(name=name, partitions=[partition]) for name in (c.topic, c.missing)],
    )


def _metadata(c: Cell, *, create: bool = False, by_id: bool = False, everything: bool = False) -> Message:
    topics: list[k03_metadata.MetadataRequestTopic] | None
    if everything:
        topics = None
    elif by_id:
        topics = [
            k03_metadata.MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in (c.topic_id, NO_TOPIC)
        ]
    else:
        topics = [k03_metadata.MetadataRequestTopic(name=name) for name in (c.topic, c.missing)]
    return k03_metadata.MetadataRequest(
        topics=topics,
        allow_auto_topic_creation=create,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=not (by_id or everything or create),
    )


def _offset_commit(c: Cell, *, by_id: bool = False) -> Message:
    partition = k08_offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    if by_id:
        topics = [
            k08_offset_commit.OffsetCommitRequestTopic(topic_id=topic_id, partitions=[partition])
            for topic_id in (c.topic_id, NO_TOPIC)
        ]
    else:
        topics = [
            k08_offset_commit.OffsetCommitRequestTopic(name=name, partitions=[partition])
            for name in (c.topic, c.missing)
        ]
    return k08_offset_commit.OffsetCommitRequest(
        group_id=c.group, generation_id_or_member_epoch=-1, member_id="", topics=topics
    )


def _offset_fetch(c: Cell, *, everything: bool = False) -> Message:
    topics = [
        k09_offset_fetch.OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in (c.topic, c.missing)
    ]
    return k09_offset_fetch.OffsetFetchRequest(
        groups=[k09_offset_fetch.OffsetFetchRequestGroup(group_id=c.group, topics=None if everything else topics)]
    )


def _create_topics(c: Cell) -> Message:
    return k19_create_topics.CreateTopicsRequest(
        topics=[
            k19_create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            for name in (c.topic, c.missing)
        ],
        timeout_ms=10_000,
    )


def _delete_topics(c: Cell, *, by_id: bool = False) -> Message:
    if by_id:
        topics = [
            k20_delete_topics.DeleteTopicState(name=None, topic_id=topic_id) for topic_id in (c.topic_id, NO_TOPIC)
        ]
    else:
        topics = [k20_delete_topics.DeleteTopicState(name=name) for name in (c.topic, c.missing)]
    return k20_delete_topics.DeleteTopicsRequest(topics=topics, timeout_ms=10_000)


def _configs(module: Any, request: str, c: Cell, what: list[tuple[int, str]]) -> Message:
    if module is k32_describe_configs:
        resources = [
            module.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=["retention.ms"])
            for kind, name in what
        ]
    else:
        resources = [
            module.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[]) for kind, name in what
        ]
    return getattr(module, request)(resources=resources)


TOPIC_CONFIG, BROKER_CONFIG, GROUP_CONFIG = 2, 4, 32


def _describe_configs(c: Cell, what: list[tuple[int, str]]) -> Message:
    return _configs(k32_describe_configs, "DescribeConfigsRequest", c, what)


def _topic_acl(c: Cell) -> k30_create_acls.AclCreation:
    return k30_create_acls.AclCreation(
        resource_type=Kind.TOPIC,
        resource_name=f"{c.prefix}-acl",
        principal="User:somebody",
        host="*",
        operation=Op.READ,
        permission_type=AclPermission.ALLOW,
    )


def _txn_partitions(c: Cell) -> list[k24_add_partitions_to_txn.AddPartitionsToTxnTopic]:
    return [k24_add_partitions_to_txn.AddPartitionsToTxnTopic(name=c.topic, partitions=[0])]


def _reassign(c: Cell) -> Message:
    partition = k45_alter_partition_reassignments.ReassignablePartition(partition_index=0, replicas=None)
    return k45_alter_partition_reassignments.AlterPartitionReassignmentsRequest(
        topics=[
            k45_alter_partition_reassignments.ReassignableTopic(name=name, partitions=[partition])
            for name in (c.topic, c.missing)
        ],
        timeout_ms=5000,
    )


CASES = [
    Case("produce", 12, _topic(Op.WRITE), _produce),
    Case("produce by id", 13, _topic(Op.WRITE), lambda c: _produce(c, by_id=True)),
    Case("produce in a transaction", 11, _txn(Op.WRITE), lambda c: _produce(c, transactional=True)),
    Case("fetch", 12, _topic(Op.READ), _fetch),
    Case("fetch by id", 17, _topic(Op.READ), lambda c: _fetch(c, by_id=True)),
    Case("list offsets", 7, _topic(Op.DESCRIBE), _list_offsets),
    Case("metadata", 10, _topic(Op.DESCRIBE), _metadata),
    Case("metadata of the cluster", 10, _cluster(Op.DESCRIBE), _metadata),
    Case("metadata by id", 13, _topic(Op.DESCRIBE), lambda c: _metadata(c, by_id=True)),
    Case("metadata of all", 13, _topic(Op.DESCRIBE), lambda c: _metadata(c, everything=True)),
    Case("metadata that creates", 12, _topic(Op.DESCRIBE), lambda c: _metadata(c, create=True)),
    Case(
        "metadata that may create",
        12,
        _all(_topic(Op.DESCRIBE), _topic(Op.CREATE)),
        lambda c: _metadata(c, create=True),
    ),
    Case("offset commit", 9, _all(_group(Op.READ), _topic(Op.READ)), _offset_commit),
    Case("offset commit without the topic", 9, _group(Op.READ), _offset_commit),
    Case("offset commit by id", 10, _all(_group(Op.READ), _topic(Op.READ)), lambda c: _offset_commit(c, by_id=True)),
    Case("offset fetch", 9, _all(_group(Op.DESCRIBE), _topic(Op.DESCRIBE)), _offset_fetch),
    Case("offset fetch without the topic", 9, _group(Op.DESCRIBE), _offset_fetch),
    Case("offset fetch of all", 9, _group(Op.DESCRIBE), lambda c: _offset_fetch(c, everything=True)),
    Case(
        "find a group's coordinator",
        4,
        _group(Op.DESCRIBE),
        lambda c: FindCoordinatorRequest(key_type=0, coordinator_keys=[c.group]),
    ),
    Case(
        "find a transaction's coordinator",
        4,
        _txn(Op.DESCRIBE),
        lambda c: FindCoordinatorRequest(key_type=1, coordinator_keys=[c.txn]),
    ),
    Case(
        "find a share partition's coordinator",
        6,
        _cluster(Op.CLUSTER_ACTION),
        lambda c: FindCoordinatorRequest(key_type=2, coordinator_keys=[f"{c.group}:{NO_TOPIC}:0"]),
    ),
    Case(
        "join group",
        9,
        _group(Op.READ),
        lambda c: JoinGroupRequest(
            group_id=c.group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
    ),
    Case(
        "heartbeat",
        4,
        _group(Op.READ),
        lambda c: HeartbeatRequest(group_id=c.group, generation_id=1, member_id="nobody"),
    ),
    Case(
        "leave group",
        5,
        _group(Op.READ),
        lambda c: LeaveGroupRequest(group_id=c.group, members=[MemberIdentity(member_id="nobody")]),
    ),
    Case(
        "sync group",
        5,
        _group(Op.READ),
        lambda c: SyncGroupRequest(
            group_id=c.group, generation_id=1, member_id="nobody", protocol_type="consumer", protocol_name="range"
        ),
    ),
    Case(
        "describe groups",
        5,
        _group(Op.DESCRIBE),
        lambda c: DescribeGroupsRequest(groups=[c.group], include_authorized_operations=True),
    ),
    Case("list groups", 5, _group(Op.DESCRIBE), lambda c: ListGroupsRequest()),
    Case("create topics", 7, _topic(Op.CREATE), _create_topics),
    Case("create topics as the cluster's creator", 7, _cluster(Op.CREATE), _create_topics),
    Case("create and describe topics", 7, _all(_topic(Op.CREATE), _topic(Op.DESCRIBE_CONFIGS)), _create_topics),
    Case("delete topics", 6, _topic(Op.DELETE), _delete_topics),
    Case("delete topics that are only seen", 6, _topic(Op.DESCRIBE), _delete_topics),
    Case("delete topics by id", 6, _topic(Op.DELETE), lambda c: _delete_topics(c, by_id=True)),
    Case("delete topics by id that are only seen", 6, _topic(Op.DESCRIBE), lambda c: _delete_topics(c, by_id=True)),
    Case(
        "delete records",
        2,
        _topic(Op.DELETE),
        lambda c: k21_delete_records.DeleteRecordsRequest(
            topics=[
                k21_delete_records.DeleteRecordsTopic(
                    name=name,
                    partitions=[k21_delete_records.DeleteRecordsPartition(partition_index=0, offset=-1)],
                )
                for name in (c.topic, c.missing)
            ],
            timeout_ms=5000,
        ),
    ),
    Case(
        "producer id of a transaction",
        4,
        _txn(Op.WRITE),
        lambda c: InitProducerIdRequest(transactional_id=c.txn, transaction_timeout_ms=10_000),
    ),
    Case(
        "producer id by the cluster",
        4,
        _cluster(Op.IDEMPOTENT_WRITE),
        lambda c: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=10_000),
    ),
    Case(
        "producer id by any topic",
        4,
        _topic(Op.WRITE),
        lambda c: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=10_000),
    ),
    Case(
        "offset for leader epoch",
        4,
        _topic(Op.DESCRIBE),
        lambda c: k23_offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                k23_offset_for_leader_epoch.OffsetForLeaderTopic(
                    topic=topic,
                    partitions=[
                        k23_offset_for_leader_epoch.OffsetForLeaderPartition(
                            partition=0, current_leader_epoch=-1, leader_epoch=0
                        )
                    ],
                )
                for topic in (c.topic, c.missing)
            ],
        ),
    ),
    Case(
        "add partitions",
        3,
        _all(_txn(Op.WRITE), _topic(Op.WRITE)),
        lambda c: k24_add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=c.txn,
            v3_and_below_producer_id=7,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=_txn_partitions(c),
        ),
    ),
    Case(
        "add partitions without the topic",
        3,
        _txn(Op.WRITE),
        lambda c: k24_add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=c.txn,
            v3_and_below_producer_id=7,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=_txn_partitions(c),
        ),
    ),
    Case(
        "add partitions for others",
        5,
        _cluster(Op.CLUSTER_ACTION),
        lambda c: k24_add_partitions_to_txn.AddPartitionsToTxnRequest(
            transactions=[
                k24_add_partitions_to_txn.AddPartitionsToTxnTransaction(
                    transactional_id=c.txn,
                    producer_id=7,
                    producer_epoch=0,
                    verify_only=True,
                    topics=_txn_partitions(c),
                )
            ]
        ),
    ),
    Case(
        "add offsets",
        3,
        _all(_txn(Op.WRITE), _group(Op.READ)),
        lambda c: AddOffsetsToTxnRequest(transactional_id=c.txn, producer_id=7, producer_epoch=0, group_id=c.group),
    ),
    Case(
        "add offsets without the group",
        3,
        _txn(Op.WRITE),
        lambda c: AddOffsetsToTxnRequest(transactional_id=c.txn, producer_id=7, producer_epoch=0, group_id=c.group),
    ),
    Case(
        "end transaction",
        4,
        _txn(Op.WRITE),
        lambda c: EndTxnRequest(transactional_id=c.txn, producer_id=7, producer_epoch=0, committed=True),
    ),
    Case(
        "write markers",
        1,
        _cluster(Op.ALTER),
        lambda c: k27_write_txn_markers.WriteTxnMarkersRequest(
            markers=[
                k27_write_txn_markers.WritableTxnMarker(
                    producer_id=7,
                    producer_epoch=0,
                    transaction_result=True,
                    coordinator_epoch=0,
                    topics=[
                        k27_write_txn_markers.WritableTxnMarkerTopic(name=name, partition_indexes=[0])
                        for name in (c.topic, c.missing)
                    ],
                )
            ]
        ),
    ),
    Case(
        "commit offsets in a transaction",
        3,
        _all(_txn(Op.WRITE), _group(Op.READ)),
        lambda c: k28_txn_offset_commit.TxnOffsetCommitRequest(
            transactional_id=c.txn,
            group_id=c.group,
            producer_id=7,
            producer_epoch=0,
            topics=[
                k28_txn_offset_commit.TxnOffsetCommitRequestTopic(
                    name=name,
                    partitions=[
                        k28_txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=0)
                    ],
                )
                for name in (c.topic, c.missing)
            ],
        ),
    ),
    Case(
        "describe ACLs",
        3,
        _cluster(Op.DESCRIBE),
        lambda c: k29_describe_acls.DescribeAclsRequest(
            resource_type_filter=Kind.TOPIC,
            resource_name_filter=f"{c.prefix}-nothing",
            pattern_type_filter=PatternType.LITERAL,
            principal_filter=None,
            host_filter=None,
            operation=Op.ANY,
            permission_type=AclPermission.ANY,
        ),
    ),
    Case(
        "create ACLs",
        3,
        _cluster(Op.ALTER),
        lambda c: k30_create_acls.CreateAclsRequest(creations=[_topic_acl(c)]),
    ),
    Case(
        "delete ACLs",
        3,
        _cluster(Op.ALTER),
        lambda c: k31_delete_acls.DeleteAclsRequest(
            filters=[
                k31_delete_acls.DeleteAclsFilter(
                    resource_type_filter=Kind.TOPIC,
                    resource_name_filter=f"{c.prefix}-nothing",
                    pattern_type_filter=PatternType.LITERAL,
                    principal_filter=None,
                    host_filter=None,
                    operation=Op.ANY,
                    permission_type=AclPermission.ANY,
                )
            ]
        ),
    ),
    Case(
        "describe configs of topics",
        4,
        _topic(Op.DESCRIBE_CONFIGS),
        lambda c: _describe_configs(c, [(TOPIC_CONFIG, c.topic), (TOPIC_CONFIG, c.missing)]),
    ),
    Case(
        "describe configs of a group",
        4,
        _group(Op.DESCRIBE_CONFIGS),
        lambda c: _describe_configs(c, [(GROUP_CONFIG, c.group)]),
    ),
    Case(
        "describe configs of a broker",
        4,
        _cluster(Op.DESCRIBE_CONFIGS),
        lambda c: _describe_configs(c, [(BROKER_CONFIG, "1")]),
    ),
    Case(
        "alter configs of topics",
        2,
        _topic(Op.ALTER_CONFIGS),
        lambda c: _configs(
            k33_alter_configs, "AlterConfigsRequest", c, [(TOPIC_CONFIG, c.topic), (TOPIC_CONFIG, c.missing)]
        ),
    ),
    Case(
        "incrementally alter configs of topics",
        1,
        _topic(Op.ALTER_CONFIGS),
        lambda c: _configs(
            k44_incremental_alter_configs,
            "IncrementalAlterConfigsRequest",
            c,
            [(TOPIC_CONFIG, c.topic), (TOPIC_CONFIG, c.missing)],
        ),
    ),
    Case(
        "incrementally alter configs of a group",
        1,
        _group(Op.ALTER_CONFIGS),
        lambda c: _configs(
            k44_incremental_alter_configs, "IncrementalAlterConfigsRequest", c, [(GROUP_CONFIG, c.group)]
        ),
    ),
    Case(
        "incrementally alter configs of a broker",
        1,
        _cluster(Op.ALTER_CONFIGS),
        lambda c: _configs(k44_incremental_alter_configs, "IncrementalAlterConfigsRequest", c, [(BROKER_CONFIG, "1")]),
    ),
    Case(
        "alter replica log dirs",
        2,
        _cluster(Op.ALTER),
        lambda c: AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path="/no/such/directory", topics=[AlterReplicaLogDirTopic(name=c.missing, partitions=[0])]
                )
            ]
        ),
    ),
    Case("describe log dirs", 4, _cluster(Op.DESCRIBE), lambda c: DescribeLogDirsRequest(topics=[])),
    Case(
        "create partitions",
        3,
        _topic(Op.ALTER),
        lambda c: k37_create_partitions.CreatePartitionsRequest(
            topics=[k37_create_partitions.CreatePartitionsTopic(name=name, count=2) for name in (c.topic, c.missing)],
            timeout_ms=10_000,
        ),
    ),
    Case(
        "create a token for oneself",
        3,
        lambda c: [],
        lambda c: k38_create_delegation_token.CreateDelegationTokenRequest(max_lifetime_ms=-1),
    ),
    Case(
        "create a token for somebody",
        3,
        lambda c: [(Op.CREATE_TOKENS, Kind.USER, f"User:{c.prefix}-owner")],
        lambda c: k38_create_delegation_token.CreateDelegationTokenRequest(
            owner_principal_type="User", owner_principal_name=f"{c.prefix}-owner", max_lifetime_ms=-1
        ),
    ),
    Case(
        "renew a token",
        2,
        lambda c: [],
        lambda c: RenewDelegationTokenRequest(hmac=b"no such token", renew_period_ms=1),
    ),
    Case(
        "expire a token",
        2,
        lambda c: [],
        lambda c: ExpireDelegationTokenRequest(hmac=b"no such token", expiry_time_period_ms=1),
    ),
    Case(
        "describe tokens",
        3,
        lambda c: [(Op.DESCRIBE_TOKENS, Kind.USER, f"User:{c.prefix}-owner")],
        lambda c: k41_describe_delegation_token.DescribeDelegationTokenRequest(
            owners=[
                k41_describe_delegation_token.DescribeDelegationTokenOwner(
                    principal_type="User", principal_name=f"{c.prefix}-owner"
                )
            ]
        ),
    ),
    Case("delete groups", 2, _group(Op.DELETE), lambda c: DeleteGroupsRequest(groups_names=[c.group])),
    Case(
        "elect leaders",
        2,
        _cluster(Op.ALTER),
        lambda c: k43_elect_leaders.ElectLeadersRequest(
            topic_partitions=[
                k43_elect_leaders.TopicPartitions(topic=topic, partitions=[0]) for topic in (c.topic, c.missing)
            ],
            timeout_ms=5000,
        ),
    ),
    Case("alter reassignments", 0, _cluster(Op.ALTER), _reassign),
    Case(
        "list reassignments",
        0,
        _cluster(Op.DESCRIBE),
        lambda c: ListPartitionReassignmentsRequest(timeout_ms=5000, topics=None),
    ),
    Case(
        "delete offsets",
        0,
        _all(_group(Op.DELETE), _topic(Op.READ)),
        lambda c: k47_offset_delete.OffsetDeleteRequest(
            group_id=c.group,
            topics=[
                k47_offset_delete.OffsetDeleteRequestTopic(
                    name=name, partitions=[k47_offset_delete.OffsetDeleteRequestPartition(partition_index=0)]
                )
                for name in (c.topic, c.missing)
            ],
        ),
    ),
    Case(
        "describe quotas",
        1,
        _cluster(Op.DESCRIBE_CONFIGS),
        lambda c: k48_describe_client_quotas.DescribeClientQuotasRequest(
            components=[
                k48_describe_client_quotas.ComponentData(entity_type="user", match_type=0, match=f"{c.prefix}-nobody")
            ]
        ),
    ),
    Case(
        "alter quotas",
        1,
        _cluster(Op.ALTER_CONFIGS),
        lambda c: k49_alter_client_quotas.AlterClientQuotasRequest(
            entries=[
                k49_alter_client_quotas.RequestEntryData(
                    entity=[k49_alter_client_quotas.EntityData(entity_type="user", entity_name=f"{c.prefix}-nobody")],
                    ops=[k49_alter_client_quotas.OpData(key="producer_byte_rate", value=1e9)],
                )
            ]
        ),
    ),
    Case("describe users", 0, _cluster(Op.DESCRIBE), lambda c: DescribeUserScramCredentialsRequest(users=[])),
    Case(
        "alter users",
        0,
        _cluster(Op.ALTER),
        lambda c: k51_alter_user_scram_credentials.AlterUserScramCredentialsRequest(
            deletions=[k51_alter_user_scram_credentials.ScramCredentialDeletion(name=f"{c.prefix}-nobody", mechanism=1)]
        ),
    ),
    Case(
        "describe quorum",
        1,
        _cluster(Op.DESCRIBE),
        lambda c: k55_describe_quorum.DescribeQuorumRequest(
            topics=[
                k55_describe_quorum.RequestTopicData(
                    topic_name="__cluster_metadata",
                    partitions=[k55_describe_quorum.RequestPartitionData(partition_index=0)],
                )
            ]
        ),
    ),
    Case(
        "update features",
        1,
        _cluster(Op.ALTER),
        lambda c: k57_update_features.UpdateFeaturesRequest(feature_updates=[], validate_only=True),
    ),
    Case(
        "describe cluster",
        1,
        _cluster(Op.DESCRIBE),
        lambda c: DescribeClusterRequest(include_cluster_authorized_operations=True),
    ),
    Case(
        "describe producers",
        0,
        _topic(Op.READ),
        lambda c: k61_describe_producers.DescribeProducersRequest(
            topics=[
                k61_describe_producers.TopicRequest(name=name, partition_indexes=[0]) for name in (c.topic, c.missing)
            ]
        ),
    ),
    Case("unregister broker", 0, _cluster(Op.ALTER), lambda c: UnregisterBrokerRequest(broker_id=99)),
    Case(
        "describe transactions",
        0,
        _txn(Op.DESCRIBE),
        lambda c: DescribeTransactionsRequest(transactional_ids=[c.txn]),
    ),
    Case("list transactions", 1, _txn(Op.DESCRIBE), lambda c: ListTransactionsRequest()),
    Case(
        "consumer group heartbeat",
        0,
        _all(_group(Op.READ), _topic(Op.DESCRIBE)),
        lambda c: ConsumerGroupHeartbeatRequest(
            group_id=c.group,
            member_epoch=0,
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=[c.topic],
            topic_partitions=list[TopicPartitions](),
        ),
    ),
    Case(
        "consumer group heartbeat without the topic",
        0,
        _group(Op.READ),
        lambda c: ConsumerGroupHeartbeatRequest(
            group_id=c.group,
            member_epoch=0,
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=[c.topic],
            topic_partitions=list[TopicPartitions](),
        ),
    ),
    Case(
        "describe consumer groups",
        0,
        _group(Op.DESCRIBE),
        lambda c: ConsumerGroupDescribeRequest(group_ids=[c.group], include_authorized_operations=True),
    ),
    Case("list config resources", 0, _cluster(Op.DESCRIBE_CONFIGS), lambda c: ListConfigResourcesRequest()),
    Case(
        "describe topic partitions",
        0,
        _topic(Op.DESCRIBE),
        lambda c: k75_describe_topic_partitions.DescribeTopicPartitionsRequest(
            topics=[k75_describe_topic_partitions.TopicRequest(name=name) for name in (c.topic, c.missing)],
            response_partition_limit=10,
        ),
    ),
    Case(
        "share group heartbeat",
        1,
        _all(_group(Op.READ), _topic(Op.DESCRIBE)),
        lambda c: ShareGroupHeartbeatRequest(group_id=c.group, member_id="m", subscribed_topic_names=[c.topic]),
    ),
    Case(
        "share group heartbeat without the topic",
        1,
        _group(Op.READ),
        lambda c: ShareGroupHeartbeatRequest(group_id=c.group, member_id="m", subscribed_topic_names=[c.topic]),
    ),
    Case(
        "describe share groups",
        1,
        _group(Op.DESCRIBE),
        lambda c: ShareGroupDescribeRequest(group_ids=[c.group], include_authorized_operations=True),
    ),
    Case(
        "streams group heartbeat",
        0,
        _all(_group(Op.READ), _topic(Op.DESCRIBE)),
        lambda c: _streams_heartbeat(c),
    ),
    Case("streams group heartbeat without the topic", 0, _group(Op.READ), lambda c: _streams_heartbeat(c)),
    Case(
        "streams group heartbeat with a topic to create",
        0,
        _all(_group(Op.READ), _topic(Op.DESCRIBE), _topic(Op.CREATE)),
        lambda c: _streams_heartbeat(c, changelogs=True),
    ),
    Case(
        "streams group heartbeat with a topic that may not be created",
        0,
        _all(_group(Op.READ), _topic(Op.DESCRIBE)),
        lambda c: _streams_heartbeat(c, changelogs=True),
    ),
    Case(
        "describe streams groups",
        0,
        _group(Op.DESCRIBE),
        lambda c: StreamsGroupDescribeRequest(group_ids=[c.group], include_authorized_operations=True),
    ),
    Case("share fetch", 2, _all(_group(Op.READ), _topic(Op.READ)), lambda c: _share_fetch(c, 5)),
    Case("share fetch without the topic", 2, _group(Op.READ), lambda c: _share_fetch(c, 0)),
    Case("share acknowledge", 2, _all(_group(Op.READ), _topic(Op.READ)), lambda c: _share_acknowledge(c)),
    _share_state(
        "initialize share state",
        0,
        k83_initialize_share_group_state.InitializeShareGroupStateRequest,
        k83_initialize_share_group_state.InitializeStateData,
        k83_initialize_share_group_state.PartitionData,
    ),
    _share_state(
        "read share state",
        0,
        k84_read_share_group_state.ReadShareGroupStateRequest,
        k84_read_share_group_state.ReadStateData,
        k84_read_share_group_state.PartitionData,
    ),
    _share_state(
        "write share state",
        1,
        k85_write_share_group_state.WriteShareGroupStateRequest,
        k85_write_share_group_state.WriteStateData,
        k85_write_share_group_state.PartitionData,
    ),
    _share_state(
        "delete share state",
        0,
        k86_delete_share_group_state.DeleteShareGroupStateRequest,
        k86_delete_share_group_state.DeleteStateData,
        k86_delete_share_group_state.PartitionData,
    ),
    _share_state(
        "read share state summary",
        1,
        k87_read_share_group_state_summary.ReadShareGroupStateSummaryRequest,
        k87_read_share_group_state_summary.ReadStateSummaryData,
        k87_read_share_group_state_summary.PartitionData,
    ),
    Case(
        "describe share offsets",
        1,
        _all(_group(Op.DESCRIBE), _topic(Op.DESCRIBE)),
        lambda c: _describe_share_offsets(c),
    ),
    Case("describe share offsets without the topic", 1, _group(Op.DESCRIBE), lambda c: _describe_share_offsets(c)),
    Case("alter share offsets", 0, _all(_group(Op.READ), _topic(Op.READ)), lambda c: _alter_share_offsets(c)),
    Case("alter share offsets without the topic", 0, _group(Op.READ), lambda c: _alter_share_offsets(c)),
    Case(
        "delete share offsets",
        0,
        _all(_group(Op.DELETE), _topic(Op.READ)),
        lambda c: k92_delete_share_group_offsets.DeleteShareGroupOffsetsRequest(
            group_id=c.group,
            topics=[k92_delete_share_group_offsets.DeleteShareGroupOffsetsRequestTopic(topic_name=c.topic)],
        ),
    ),
    Case("add a voter", 0, _cluster(Op.ALTER), lambda c: AddRaftVoterRequest(cluster_id=None, voter_id=-1)),
    Case("remove a voter", 0, _cluster(Op.ALTER), lambda c: RemoveRaftVoterRequest(cluster_id=None, voter_id=-1)),
]


# Principals


def user(case: Case, kind: str) -> str:
    """Return the principal of a cell."""
    return ADMIN if kind == "super" else f"{_number(case)}-{kind}"


def cell(case: Case, kind: str) -> Cell:
    """Return the names of a cell."""
    return Cell(f"{_number(case)}-{kind}")


def _number(case: Case) -> str:
    return "c-" + case.name.replace(" ", "-").replace("'", "")


def passwords() -> dict[str, str]:
    """Return the password of every principal."""
    names = [user(case, kind) for case in CASES for kind in KINDS if kind != "super"]
    return {ADMIN: ADMIN_PASSWORD} | {name: f"{name}-secret" for name in names}


def jaas() -> str:
    """Return the users as a JAAS section for PLAIN."""
    users = " ".join(f'user_{name}="{password}"' for name, password in passwords().items())
    return (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="{ADMIN}" password="{ADMIN_PASSWORD}" {users};'
    )


SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:{ADMIN};User:ANONYMOUS",
    "delegation.token.secret.key": "the-key-of-the-matrix",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas(),
    "auto.create.topics.enable": "true",
    "group.streams.initial.rebalance.delay.ms": "3000",
}


def acls(case: Case, kind: str) -> list[k30_create_acls.AclCreation]:
    """Return the ACLs of a cell's principal."""
    if kind in ("none", "super"):
        return []
    principal = f"User:{user(case, kind)}"
    own = cell(case, kind)
    acls = []
    for operation, resource, name in case.needs(own):
        pattern, permission, target = PatternType.LITERAL, AclPermission.ALLOW, name
        if kind == "prefixed":
            pattern = PatternType.PREFIXED
            if resource is Kind.USER:
                target = f"User:{own.prefix}"
            elif resource is not Kind.CLUSTER:
                target = own.prefix
        elif kind == "implied":
            if operation in IMPLIED_BY:
                operation = IMPLIED_BY[operation]
            elif resource is not Kind.CLUSTER:
                operation, target = Op.ALL, "*"
            else:
                operation = Op.ALL
        elif kind == "denied":
            acls.append(_acl(resource, name, PatternType.LITERAL, principal, operation, AclPermission.DENY))
            operation = Op.ALL
        acls.append(_acl(resource, target, pattern, principal, operation, permission))
    return acls


def _acl(
    resource: Kind, name: str, pattern: PatternType, principal: str, operation: Op, permission: AclPermission
) -> k30_create_acls.AclCreation:
    return k30_create_acls.AclCreation(
        resource_type=resource,
        resource_name=name,
        resource_pattern_type=pattern,
        principal=principal,
        host="*",
        operation=operation,
        permission_type=permission,
    )


# Requests


def run_matrix(host: str, port: int) -> dict[str, dict[str, Any]]:
    """Prepare a broker, send all requests, and return the responses by case and kind."""
    admin = _connect(host, port, ADMIN)
    try:
        _prepare(admin)
        return {case.name: {kind: _ask(host, port, admin, case, kind) for kind in KINDS} for case in CASES}
    finally:
        admin.close()


def _connect(host: str, port: int, name: str) -> BrokerConnection:
    login = Login("PLAIN", name, passwords()[name])
    return BrokerConnection(host, port, timeout=60, security=Security(login=login))


def _send(connection: BrokerConnection, request: Message, version: int | None = None) -> Message:
    key = request.__schema__.api_key
    assert key is not None
    return connection.send(request, response_class(key), version=version)


def _prepare(admin: BrokerConnection) -> None:
    cells = [(case, kind) for case in CASES for kind in KINDS]
    creations = [acl for case, kind in cells for acl in acls(case, kind)]
    for start in range(0, len(creations), 200):
        response: Any = _send(admin, k30_create_acls.CreateAclsRequest(creations=creations[start : start + 200]))
        assert all(not member_value.error_code for member_value in response.results), response
    names = [cell(case, kind).topic for case, kind in cells]
    for start in range(0, len(names), 100):
        request = k19_create_topics.CreateTopicsRequest(
            topics=[
                k19_create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
                for name in names[start : start + 100]
            ],
            timeout_ms=60_000,
        )
        response = _send(admin, request)
        assert all(not topic.error_code for topic in response.topics), response
    for key_type, key in ((0, "warm"), (1, "warm")):
        _until_ready(admin, FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]), 4)
    _until_ready(admin, FindCoordinatorRequest(key_type=2, coordinator_keys=[f"warm:{NO_TOPIC}:0"]), 6)


def _until_ready(connection: BrokerConnection, request: Message, version: int) -> Message:
    for _ in range(200):
        response = _send(connection, request, version)
        if not _codes(response) & RETRY:
            return response
        time.sleep(0.1)  # a real Kafka makes the topic on its own time
    raise AssertionError(f"the coordinator did not come up: {response}")


def _ask(host: str, port: int, admin: BrokerConnection, case: Case, kind: str) -> Any:
    own = cell(case, kind)
    result: Any = _send(
        admin,
        k03_metadata.MetadataRequest(
            topics=[k03_metadata.MetadataRequestTopic(name=own.topic)], allow_auto_topic_creation=False
        ),
    )
    own.topic_id = result.topics[0].topic_id
    connection = _connect(host, port, user(case, kind))
    try:
        response = _until_ready(connection, case.ask(own), case.version)
    except ConnectionFailedError:
        return "disconnected"
    finally:
        connection.close()
    return skeleton(response, own)


# Responses without what varies

KEPT = {
    "error_code",
    "topic_config_error_code",
    "partition_error_code",
    "topic_authorized_operations",
    "cluster_authorized_operations",
    "authorized_operations",
    "user",
    "name",
    "topic",
    "topic_name",
    "group_id",
    "key",
    "transactional_id",
    "resource_name",
    "resource_type",
    "principal_type",
    "principal_name",
    "status_code",
    "status_detail",
}
LEFT_OUT = {
    "brokers",
    "node_endpoints",
    "configs",
    "values",
    "nodes",
    "current_voters",
    "observers",
    "results_log_dirs",
    "config_resources",
    "topic_id",
}


def skeleton(value: Any, own: Cell) -> Any:
    """Return error codes, names and operations, in a stable order."""
    if isinstance(value, list):
        result = [skeleton(member_value, own) for member_value in value]
        return sorted((member_value for member_value in result if _mine(member_value, own)), key=repr)
    if _is_struct(value):
        kept = {}
        for name in _fields(value):
            if name in LEFT_OUT:
                continue
            member_value = getattr(value, name)
            if isinstance(member_value, list):
                if member_value and _is_struct(member_value[0]):
                    kept[name] = skeleton(member_value, own)
            elif _is_struct(member_value):
                continue
            elif name in KEPT:
                kept[name] = int(member_value) if isinstance(member_value, int) else member_value
        return kept
    return value


def _mine(member_value: Any, own: Cell) -> bool:
    """Lists of everything hold what other cells made: only this cell's own names count."""
    if not isinstance(member_value, dict):
        return True
    for key in ("name", "group_id", "transactional_id", "user"):
        name = member_value.get(key)
        if isinstance(name, str) and name.startswith(("c-", "__")) and not name.startswith(own.prefix):
            return False
    return True


def _is_struct(value: Any) -> bool:
    return isinstance(value, Struct)


def _fields(value: Any) -> list[str]:
    return [member_value.name for member_value in value.__schema__.fields]


def _codes(value: Any) -> set[int]:
    result: set[int] = set()
    if isinstance(value, list):
        for member_value in value:
            result |= _codes(member_value)
    elif _is_struct(value):
        for name in _fields(value):
            member_value = getattr(value, name)
            if name.endswith("error_code") and isinstance(member_value, int):
                result.add(member_value)
            else:
                result |= _codes(member_value)
    return result
