"""ApiVersions, Metadata, DescribeTopicPartitions, and topics that are made, grown and deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.k19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.protocol.messages.k37_create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from ottla.protocol.messages.k60_describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.protocol.messages.k75_describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from ottla.protocol.schema import ZERO_UUID, Uuid
from tests.conversations.side_by_side import PeerClosedError

from . import script

if TYPE_CHECKING:
    from tests.conversations.side_by_side import Talk

NOBODY = Uuid(b"nobody has this!")


@script()
def api_versions(talk: Talk) -> None:
    def request(version: int, name: str = "librdkafka", release: str = "2.8.0") -> ApiVersionsRequest:
        if version < 3:
            return ApiVersionsRequest()
        return ApiVersionsRequest(client_software_name=name, client_software_version=release)

    for version in range(5):
        response = talk.quietly(request(version), ApiVersionsResponse, version=version)
        # What is served yet is the coverage table's matter; here the form of the answer counts.
        talk.note(
            f"v{version} features", sorted((f.name, f.min_version, f.max_version) for f in response.supported_features)
        )
        talk.note(f"v{version} finalized", sorted((f.name, f.max_version_level) for f in response.finalized_features))
        talk.note(
            f"v{version} order", [k.api_key for k in response.api_keys] == sorted(k.api_key for k in response.api_keys)
        )
        talk.note(f"v{version} zk migration", response.zk_migration_ready)
    names = ["", " ", "a b", "-a", "a-", ".", "a.b-c", "\u00e9", "a_b", "a" * 300, "9"]
    for name in names:
        talk.ask(f"software name {name!r}", request(3, name), ApiVersionsResponse, version=3, unordered=()) if (
            name not in ("a.b-c", "9", "a" * 300)
        ) else talk.note(
            f"software name {name!r}", talk.quietly(request(3, name), ApiVersionsResponse, version=3).error_code
        )
    for release in ("", "2.8.0-", "v2"):
        response = talk.quietly(request(4, release=release), ApiVersionsResponse, version=4)
        talk.note(f"software version {release!r}", response.error_code)
    for version in (5, 6, 99, 32767, -1, -32768):
        prefix = (18).to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + (77).to_bytes(4, "big")
        talk.ask_bytes(f"ApiVersions v{version}", prefix + b"\xff\xff")
        talk.ask_bytes(f"ApiVersions v{version} with a body", prefix + b"\x00\x01x" + b"\x00" * 9)


@script(differs={"an array of -2": "Kafka takes any negative count for null; a count below -1 is garbage here"})
def unknown_apis_and_versions(talk: Talk) -> None:
    for key in (-1, 4, 5, 6, 7, 52, 58, 59, 62, 63, 67, 70, 73, 82, 93, 999, 32767, -32768):
        prefix = key.to_bytes(2, "big", signed=True) + (0).to_bytes(2, "big") + (1).to_bytes(4, "big")
        talk.ask_bytes(f"API {key}", prefix + b"\xff\xff" + b"\x00" * 20)
    for version in (-1, 14, 99, -32768):
        prefix = (3).to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + (1).to_bytes(4, "big")
        talk.ask_bytes(f"Metadata v{version}", prefix + b"\xff\xff" + b"\x00" * 20)
    for version in (0, 1, 2, 3):
        prefix = (1).to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + (1).to_bytes(4, "big")
        talk.ask_bytes(f"Fetch v{version}", prefix + b"\xff\xff" + b"\x00" * 20)
    whole = (3).to_bytes(2, "big") + (1).to_bytes(2, "big") + (1).to_bytes(4, "big") + b"\xff\xff" + b"\x00" * 4
    talk.ask_bytes("a body cut off", whole[:-1])
    talk.ask_bytes("a header cut off", whole[:7])
    talk.ask_bytes("nothing at all", b"")
    talk.ask_bytes("a client id that is not UTF-8", whole[:8] + b"\x00\x02\xff\xfe" + b"\x00" * 4, shown=False)
    talk.ask_bytes("an array of a billion", whole[:10] + b"\x3b\x9a\xca\x00")
    talk.ask_bytes("an array of -2", whole[:10] + b"\xff\xff\xff\xfe", shown=False)
    for size in (-1, -(2**31), 2**31 - 1, 104857601):
        talk.wire.send_bytes(size.to_bytes(4, "big", signed=True))
        try:
            talk.wire.receive_frame()
        except PeerClosedError as error:
            talk.note(f"a frame of {size}", type(error).__name__)
            talk.close()


@script(
    differs={
        f"by zero id v{version}": "Kafka trips over the missing name (UNKNOWN_SERVER_ERROR); here INVALID_REQUEST"
        for version in (12, 13)
    }
)
def metadata(talk: Talk) -> None:
    talk.ask_all("no topics", lambda v: MetadataRequest(topics=None if v else []), MetadataResponse)
    first = talk.create("first", 3)
    talk.create("second")
    talk.ask_all("all", lambda v: MetadataRequest(topics=None if v else []), MetadataResponse, unordered=("topics",))
    talk.ask_all("empty list", lambda v: MetadataRequest(topics=[]), MetadataResponse, least=1)

    def named(*names: str) -> list[MetadataRequestTopic]:
        return [MetadataRequestTopic(name=name) for name in names]

    def of(version: int, *names: str) -> MetadataRequest:
        if version < 4:
            return MetadataRequest(topics=named(*names))
        return MetadataRequest(topics=named(*names), allow_auto_topic_creation=False)

    talk.ask_all("one", lambda v: of(v, "first"), MetadataResponse)
    talk.ask_all("two", lambda v: of(v, "second", "first"), MetadataResponse, unordered=("topics",))
    talk.ask_all("one twice", lambda v: of(v, "first", "first"), MetadataResponse)
    talk.ask_all("unknown", lambda v: of(v, "third"), MetadataResponse, least=4)
    for number, name in enumerate(("", ".", "..", "a b", "\u00e9", "x" * 250, "a/b", "__consumer_offsets")):
        talk.ask_all(f"name {number}", lambda v, name=name: of(v, name), MetadataResponse, least=4)  # type: ignore[misc]

    def by_id(*ids: Uuid, name: str | None = None) -> MetadataRequest:
        topics = [MetadataRequestTopic(topic_id=topic_id, name=name) for topic_id in ids]
        return MetadataRequest(topics=topics, allow_auto_topic_creation=False)

    talk.ask_all("by id", lambda v: by_id(first), MetadataResponse, least=12)
    talk.ask_all("by unknown id", lambda v: by_id(NOBODY), MetadataResponse, least=12)
    talk.ask_all("by zero id", lambda v: by_id(ZERO_UUID), MetadataResponse, least=12)
    talk.ask_all("by both ids", lambda v: by_id(first, NOBODY), MetadataResponse, least=12)
    talk.ask_all("by id and name", lambda v: by_id(first, name="first"), MetadataResponse, least=12)
    talk.ask_all("by id in an old version", lambda v: by_id(first), MetadataResponse, least=10)
    operations = MetadataRequest(
        topics=named("first"), include_topic_authorized_operations=True, allow_auto_topic_creation=False
    )
    talk.ask_all("with operations", lambda v: operations, MetadataResponse, least=8)
    both = MetadataRequest(topics=named("first"), include_cluster_authorized_operations=True)
    for version in range(8, 11):
        talk.ask(f"with cluster operations v{version}", both, MetadataResponse, version=version)


@script()
def metadata_creates_topics(talk: Talk) -> None:
    for version in talk.versions[3]:
        name = f"made-{version}"
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        talk.ask(f"first v{version}", request, MetadataResponse, version=version)
        talk.wait_for(name)
        talk.ask(f"then v{version}", request, MetadataResponse, version=version)
    for number, name in enumerate(("", ".", "a b", "x" * 250)):
        talk.ask(
            f"bad name {number}",
            MetadataRequest(topics=[MetadataRequestTopic(name=name), MetadataRequestTopic(name="made-1")]),
            MetadataResponse,
        )
    talk.create("a.b")
    talk.ask("colliding", MetadataRequest(topics=[MetadataRequestTopic(name="a_b")]), MetadataResponse)


def _topic(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    assignments: dict[int, list[int]] | None = None,
    **configs: str | None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in (assignments or {}).items()
        ],
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def _create(*topics: CreatableTopic, dry: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=list(topics), timeout_ms=20_000, validate_only=dry)


@script()
def create_topics(talk: Talk) -> None:
    talk.ask_all("plain", lambda v: _create(_topic(f"plain-{v}", 2)), CreateTopicsResponse, least=2)


@script()
def create_topics_validation(talk: Talk) -> None:
    talk.create("there")
    talk.create("dot.ted")
    table: dict[str, list[CreatableTopic]] = {
        "nothing": [],
        "exists": [_topic("there")],
        "exists with bad settings": [_topic("there", 0, 0)],
        "empty name": [_topic("")],
        "dot": [_topic(".")],
        "dots": [_topic("..")],
        "long": [_topic("x" * 250)],
        "long enough": [_topic("x" * 249)],
        "strange": [_topic("a b")],
        "slash": [_topic("a/b")],
        "letters": [_topic("\u00e9")],
        "collides": [_topic("dot_ted")],
        "metadata": [_topic("__cluster_metadata")],
        "twice": [_topic("twin"), _topic("twin", 2)],
        "twice beside another": [_topic("twin"), _topic("alone"), _topic("twin", 2)],
        "no partitions": [_topic("new", 0)],
        "negative partitions": [_topic("new", -2)],
        "default partitions": [_topic("defaults", -1, -1)],
        "no replicas": [_topic("new", 1, 0)],
        "negative replicas": [_topic("new", 1, -2)],
        "too many replicas": [_topic("new", 1, 2)],
        "too many replicas for many partitions": [_topic("new", 3, 7)],
        "too many partitions": [_topic("new", 10_001)],
        "too many partitions together": [_topic("new", 6_000), _topic("newer", 6_000)],
        "assigned": [_topic("assigned", -1, -1, {0: [1], 1: [1]})],
        "assigned with a count": [_topic("new", 2, -1, {0: [1], 1: [1]})],
        "assigned with a factor": [_topic("new", -1, 1, {0: [1], 1: [1]})],
        "assigned to a stranger": [_topic("new", -1, -1, {0: [7]})],
        "assigned twice": [_topic("new", -1, -1, {0: [1, 1]})],
        "assigned to nobody": [_topic("new", -1, -1, {0: []})],
        "assigned with a gap": [_topic("new", -1, -1, {0: [1], 2: [1]})],
        "assigned from one": [_topic("new", -1, -1, {1: [1]})],
        "assigned unevenly": [_topic("new", -1, -1, {0: [1], 1: [1, 1]})],
        "unknown config": [_topic("new", no_such_config="1")],
        "null config": [_topic("new", retention_ms=None)],
        "null configs": [_topic("new", retention_ms=None, segment_bytes=None)],
        "config of the wrong type": [_topic("new", retention_ms="soon")],
        "config out of bounds": [_topic("new", segment_bytes="1")],
        "config of no choice": [_topic("new", cleanup_policy="shred")],
        "config twice": [
            CreatableTopic(
                name="new",
                num_partitions=1,
                replication_factor=1,
                configs=[
                    CreatableTopicConfig(name="retention.ms", value="1"),
                    CreatableTopicConfig(name="retention.ms", value="2"),
                ],
            )
        ],
        "lags that conflict": [_topic("new", min_compaction_lag_ms="10", max_compaction_lag_ms="5")],
        "tiered": [_topic("new", remote_storage_enable="true")],
        "empty value": [_topic("new", retention_ms="")],
        "spaces around a value": [_topic("spaced", retention_ms=" 5 ")],
        "one good one bad": [_topic("good"), _topic("b a d")],
        "bad settings and a bad name": [_topic("b a d", 0, 0, None, nope="1")],
        "bad settings and a bad config": [_topic("new", 0, 1, None, nope="1")],
    }
    for label, topics in table.items():
        talk.ask(label, _create(*topics), CreateTopicsResponse, unordered=("topics",))
        talk.know_topics()
    talk.ask("dry run", _create(_topic("dry"), dry=True), CreateTopicsResponse)
    talk.ask(
        "dry run left nothing",
        MetadataRequest(topics=[MetadataRequestTopic(name="dry")], allow_auto_topic_creation=False),
        MetadataResponse,
    )
    for version in talk.versions[19]:
        talk.ask(f"exists v{version}", _create(_topic("there")), CreateTopicsResponse, version=version)


@script()
def delete_topics(talk: Talk) -> None:
    def named(*names: str) -> DeleteTopicsRequest:
        return DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names], timeout_ms=20_000)

    for version in talk.versions[20]:
        talk.create(f"old-{version}")
        names = [f"old-{version}", "never"]
        request = named(*names) if version >= 6 else DeleteTopicsRequest(topic_names=names, timeout_ms=20_000)
        talk.ask(f"v{version}", request, DeleteTopicsResponse, version=version, unordered=("responses",))
    ids = {name: talk.create(name) for name in ("a", "b", "c", "d")}
    state = DeleteTopicState
    table = {
        "nothing": [],
        "by id": [state(name=None, topic_id=ids["a"])],
        "by an id that is gone": [state(name=None, topic_id=ids["a"])],
        "by unknown id": [state(name=None, topic_id=NOBODY)],
        "by neither": [state(name=None)],
        "by both": [state(name="b", topic_id=ids["b"])],
        "by name and by id": [state(name="b"), state(name=None, topic_id=ids["b"])],
        "name twice": [state(name="b"), state(name="b")],
        "id twice": [state(name=None, topic_id=ids["c"]), state(name=None, topic_id=ids["c"])],
        "empty name": [state(name="")],
        "bad name": [state(name="a b")],
        "the metadata": [state(name="__cluster_metadata")],
        "one good one bad": [state(name="d"), state(name="never")],
    }
    for label, topics in table.items():
        talk.ask(
            label, DeleteTopicsRequest(topics=topics, timeout_ms=20_000), DeleteTopicsResponse, unordered=("responses",)
        )


@script()
def create_partitions(talk: Talk) -> None:
    for version in talk.versions[37]:
        talk.create(f"grows-{version}")
        topic = CreatePartitionsTopic(name=f"grows-{version}", count=3, assignments=None)
        talk.ask(
            f"v{version}",
            CreatePartitionsRequest(topics=[topic], timeout_ms=20_000),
            CreatePartitionsResponse,
            version=version,
        )
        talk.wait_for(f"grows-{version}", 3)
    talk.create("here", 2)

    def to(name: str, count: int, *assigned: list[int]) -> CreatePartitionsTopic:
        chosen = [CreatePartitionsAssignment(broker_ids=entry) for entry in assigned] if assigned else None
        return CreatePartitionsTopic(name=name, count=count, assignments=chosen)

    # 20,000 partitions at once are not asked for: Kafka 4.3.1 half-creates them and is hard to talk to afterwards.
    empty = CreatePartitionsTopic(name="here", count=3, assignments=[])
    table = {
        "nothing": [],
        "unknown": [to("nowhere", 3)],
        "same": [to("here", 2)],
        "fewer": [to("here", 1)],
        "none": [to("here", 0)],
        "negative": [to("here", -1)],
        "twice": [to("here", 3), to("here", 4)],
        "too few assigned": [to("here", 4, [1])],
        "too many assigned": [to("here", 3, [1], [1])],
        "assigned nothing": [empty],
        "assigned to a stranger": [to("here", 3, [9])],
        "assigned to nobody": [to("here", 3, [])],
        "assigned twice": [to("here", 3, [1, 1])],
        "other factor": [to("here", 3, [1, 2])],
        "empty name": [to("", 3)],
    }
    for label, topics in table.items():
        talk.ask(
            label,
            CreatePartitionsRequest(topics=topics, timeout_ms=20_000),
            CreatePartitionsResponse,
            unordered=("results",),
        )
    talk.ask(
        "dry run",
        CreatePartitionsRequest(topics=[to("here", 5)], validate_only=True, timeout_ms=20_000),
        CreatePartitionsResponse,
    )
    talk.ask(
        "assigned", CreatePartitionsRequest(topics=[to("here", 3, [1])], timeout_ms=20_000), CreatePartitionsResponse
    )


@script()
def describe_cluster(talk: Talk) -> None:
    talk.ask_all("plain", lambda v: DescribeClusterRequest(), DescribeClusterResponse)
    talk.ask_all(
        "with operations",
        lambda v: DescribeClusterRequest(include_cluster_authorized_operations=True),
        DescribeClusterResponse,
    )
    for kind in (0, 2, 3, -1):
        talk.ask_all(
            f"endpoint type {kind}",
            lambda v, k=kind: DescribeClusterRequest(endpoint_type=k),
            DescribeClusterResponse,
            least=1,
        )  # type: ignore[misc]
    talk.ask("fenced ones too", DescribeClusterRequest(include_fenced_brokers=True), DescribeClusterResponse, version=2)


@script(differs={"empty name": "Kafka trips over the empty name with UNKNOWN_SERVER_ERROR; no topic has it"})
def describe_topic_partitions(talk: Talk) -> None:
    talk.create("alpha", 3)
    talk.create("beta", 2)
    talk.create("gamma")

    def ask(label: str, names: list[str], limit: int = 2000, cursor: tuple[str, int] | None = None) -> None:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
        )
        talk.ask(label, request, DescribeTopicPartitionsResponse)

    ask("all", [])
    ask("one", ["beta"])
    ask("order", ["gamma", "alpha"])
    ask("twice", ["alpha", "alpha"])
    ask("unknown", ["delta"])
    ask("unknown among others", ["delta", "alpha", "zeta"])
    ask("empty name", [""])
    ask("invalid name", ["a b"])
    for limit in (-1, 0, 1, 2, 3, 4, 5, 6, 7):
        ask(f"limit {limit}", [], limit)
    for cursor in (("alpha", 1), ("alpha", 3), ("alpha", 7), ("beta", 0), ("az", 1), ("zz", 0), ("", 0), ("alpha", -1)):
        ask(f"cursor {cursor}", [], 3, cursor)
    ask("cursor at an unknown topic", ["alpha", "delta"], 3, ("delta", 0))
    ask("cursor and names", ["alpha", "gamma"], 2, ("alpha", 2))
    ask("cursor before an unknown name", ["beta", "zeta"], 3, ("alpha", 1))
