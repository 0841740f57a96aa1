"""The cluster itself: elections, reassignments, the quorum, features, log directories, brokers that are not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.protocol.messages.k35_describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.messages.k37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from ottla.protocol.messages.k38_create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from ottla.protocol.messages.k43_elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from ottla.protocol.messages.k45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.k46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)
from ottla.protocol.messages.k55_describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RequestPartitionData,
    RequestTopicData,
)
from ottla.protocol.messages.k57_update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.protocol.messages.k64_unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

from . import script

if TYPE_CHECKING:
    from ottla.protocol.schema import Message
    from tests.conversations.side_by_side import Talk

NO_TIME = (0, -1, -(2**31))
UNORDERED = ("partition_result", "partition_results", "topics", "partitions", "responses", "replica_election_results")


@script()
def elections(talk: Talk) -> None:
    talk.create("t", 2)

    def ask(label: str, kind: int, topics: dict[str, list[int]] | None, version: int) -> None:
        expected = None if topics is None else [TopicPartitions(topic=name, partitions=p) for name, p in topics.items()]
        request = ElectLeadersRequest(topic_partitions=expected, timeout_ms=10_000)
        if version >= 1:
            request.election_type = kind
        talk.ask(f"{label} v{version}", request, ElectLeadersResponse, version=version, unordered=UNORDERED)

    for version in talk.versions[43]:
        for kind in (0, 1) if version else (0,):
            ask(f"one, kind {kind}", kind, {"t": [0]}, version)
            ask(f"both, kind {kind}", kind, {"t": [0, 1]}, version)
            ask(f"unknown partition, kind {kind}", kind, {"t": [9]}, version)
            ask(f"unknown topic, kind {kind}", kind, {"nowhere": [0]}, version)
            ask(f"none, kind {kind}", kind, {}, version)


@script()
def reassignments(talk: Talk) -> None:
    talk.create("t", 2)

    def alter(label: str, index: int, replicas: list[int] | None, topic: str = "t") -> None:
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=10_000,
            topics=[
                ReassignableTopic(
                    name=topic, partitions=[ReassignablePartition(partition_index=index, replicas=replicas)]
                )
            ],
        )
        for version in talk.versions[45]:
            talk.ask(f"{label} v{version}", request, AlterPartitionReassignmentsResponse, version=version)

    def listed(label: str, topics: dict[str, list[int]] | None) -> None:
        expected = (
            None
            if topics is None
            else [ListPartitionReassignmentsTopics(name=name, partition_indexes=p) for name, p in topics.items()]
        )
        request = ListPartitionReassignmentsRequest(timeout_ms=10_000, topics=expected)
        talk.ask(label, request, ListPartitionReassignmentsResponse)

    listed("nothing moves", None)
    alter("to where it is", 0, [1])
    alter("to a broker that is not there", 0, [9])
    alter("to the same twice", 0, [1, 1])
    alter("to nobody", 0, [])
    alter("to a negative broker", 0, [-1])
    alter("cancelled", 0, None)
    alter("unknown partition", 7, [1])
    alter("unknown topic", 0, [1], "nowhere")
    listed("one that is there", {"t": [0]})
    listed("one that is not there", {"t": [7], "nowhere": [0]})


@script()
def quorum(talk: Talk) -> None:
    def ask(label: str, topics: dict[str, list[int]], version: int) -> None:
        request = DescribeQuorumRequest(
            topics=[
                RequestTopicData(
                    topic_name=name, partitions=[RequestPartitionData(partition_index=index) for index in indexes]
                )
                for name, indexes in topics.items()
            ]
        )
        talk.ask(f"{label} v{version}", request, DescribeQuorumResponse, version=version)

    for version in talk.versions[55]:
        ask("another topic", {"nowhere": [0]}, version)
        ask("another partition", {"__cluster_metadata": [1]}, version)
        ask("two partitions", {"__cluster_metadata": [0, 1]}, version)
        ask("no topic", {}, version)


@script()
def features_and_brokers(talk: Talk) -> None:
    def update(label: str, *updates: FeatureUpdateKey, dry: bool = True) -> None:
        request = UpdateFeaturesRequest(feature_updates=list(updates), validate_only=dry, timeout_ms=10_000)
        talk.ask(label, request, UpdateFeaturesResponse)

    update("unknown feature", FeatureUpdateKey(feature="no.such.feature", max_version_level=1, upgrade_type=1))
    update("too high", FeatureUpdateKey(feature="metadata.version", max_version_level=9999, upgrade_type=1))
    update("negative", FeatureUpdateKey(feature="metadata.version", max_version_level=-1, upgrade_type=1))
    update("as it is", FeatureUpdateKey(feature="metadata.version", max_version_level=30, upgrade_type=1))
    update("down as an upgrade", FeatureUpdateKey(feature="metadata.version", max_version_level=20, upgrade_type=1))
    update("a kind that is not known", FeatureUpdateKey(feature="group.version", max_version_level=1, upgrade_type=9))
    update("nothing", dry=False)
    for broker in (99, -1):
        request = UnregisterBrokerRequest(broker_id=broker)
        talk.ask(f"unregister {broker}", request, UnregisterBrokerResponse)


@script()
def log_dirs(talk: Talk) -> None:
    talk.create("t", 2)
    for version in talk.versions[35]:
        for label, topics in (
            ("one", [DescribableLogDirTopic(topic="t", partitions=[0])]),
            ("unknown", [DescribableLogDirTopic(topic="nowhere", partitions=[0])]),
            ("none", []),
        ):
            request = DescribeLogDirsRequest(topics=topics)
            talk.ask(f"{label} v{version}", request, DescribeLogDirsResponse, version=version, unordered=UNORDERED)


@script()
def no_time(talk: Talk) -> None:
    """What the controller is given no time for has timed out before it begins."""
    talk.create("t", 2)
    for time in NO_TIME:
        topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("n", "bad name")]
        requests: list[tuple[Message, type[Message]]] = [
            (CreateTopicsRequest(topics=topics, timeout_ms=time), CreateTopicsResponse),
            (CreateTopicsRequest(timeout_ms=time), CreateTopicsResponse),
            (
                DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in ("t", "no")], timeout_ms=time),
                DeleteTopicsResponse,
            ),
            (
                CreatePartitionsRequest(
                    topics=[CreatePartitionsTopic(name=name, count=3, assignments=None) for name in ("t", "no")],
                    timeout_ms=time,
                ),
                CreatePartitionsResponse,
            ),
            (
                ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0, 7])], timeout_ms=time),
                ElectLeadersResponse,
            ),
            (ElectLeadersRequest(topic_partitions=None, timeout_ms=time), ElectLeadersResponse),
            (ElectLeadersRequest(topic_partitions=[], timeout_ms=time), ElectLeadersResponse),
            (ElectLeadersRequest(topic_partitions=[], election_type=9, timeout_ms=time), ElectLeadersResponse),
            (
                AlterPartitionReassignmentsRequest(
                    topics=[
                        ReassignableTopic(name="t", partitions=[ReassignablePartition(partition_index=0, replicas=[1])])
                    ],
                    timeout_ms=time,
                ),
                AlterPartitionReassignmentsResponse,
            ),
            (ListPartitionReassignmentsRequest(topics=None, timeout_ms=time), ListPartitionReassignmentsResponse),
            (
                UpdateFeaturesRequest(
                    feature_updates=[
                        FeatureUpdateKey(feature="nobody", max_version_level=level, upgrade_type=level + 1)
                        for level in (0, 1)
                    ],
                    timeout_ms=time,
                ),
                UpdateFeaturesResponse,
            ),
        ]
        for number, (request, response) in enumerate(requests):
            label = f"{number} {type(request).__name__} in {time} ms"
            talk.ask(label, request, response, unordered=(*UNORDERED, "results"))
    for version in talk.versions[38]:
        talk.ask(f"token v{version}", CreateDelegationTokenRequest(), CreateDelegationTokenResponse, version=version)
