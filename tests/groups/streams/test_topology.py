"""Topologies of streams groups: tasks, internal topics, and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.groups.streams.internal_topics import configure
from ottla.groups.streams.topology import (
    ConfiguredTopology,
    StatusCode,
    StreamsTopology,
    TopologyStatus,
    check_names,
    described,
    endpoint_partitions,
    named_topics,
    to_record,
    validate,
)
from ottla.hashing.java import hash_map_order
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import k88_streams_group_heartbeat as k88
from tests.groups.streams.cases import existing, random_topology

if TYPE_CHECKING:
    from random import Random


def internal(name: str, partitions: int = 0, replication: int = 0, **configs: str) -> k88.TopicInfo:
    return k88.TopicInfo(
        name=name,
        partitions=partitions,
        replication_factor=replication,
        topic_configs=[k88.KeyValue(key=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def part(
    name: str,
    *sources: str,
    reads: tuple[k88.TopicInfo, ...] = (),
    writes: tuple[str, ...] = (),
    state: tuple[k88.TopicInfo, ...] = (),
    together: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (),
) -> k88.Subtopology:
    return k88.Subtopology(
        subtopology_id=name,
        source_topics=list(sources),
        repartition_source_topics=list(reads),
        repartition_sink_topics=list(writes),
        state_changelog_topics=list(state),
        copartition_groups=[
            k88.CopartitionGroup(source_topics=list(one), repartition_source_topics=list(other))
            for one, other in together
        ],
    )


def topology(*parts: k88.Subtopology) -> StreamsTopology:
    return StreamsTopology.from_record(to_record(k88.Topology(epoch=1, subtopologies=list(parts))))


def resolve(*parts: k88.Subtopology, **topics: int) -> ConfiguredTopology:
    return configure(topology(*parts), existing({name.replace("_", "-"): count for name, count in topics.items()}), 5)


COUNT = (
    part("0", "words", writes=("app-repartition",)),
    part("1", reads=(internal("app-repartition"),), state=(internal("app-changelog", cleanup_policy="compact"),)),
)


def test_word_count_needs_repartition_and_changelog_topics() -> None:
    configured = resolve(*COUNT, words=3)
    assert configured.subtopologies is not None
    assert {
        name: (subtopology.task_count, subtopology.is_stateful)
        for name, subtopology in configured.subtopologies.items()
    } == {
        "0": (3, False),
        "1": (3, True),
    }
    assert {(topic.name, topic.partition_count) for topic in configured.topics_to_create} == {
        ("app-repartition", 3),
        ("app-changelog", 3),
    }
    assert configured.status is not None
    assert configured.status.code == StatusCode.MISSING_INTERNAL_TOPICS
    assert not configured.is_ready


def test_topology_is_ready_when_its_internal_topics_exist() -> None:
    configured = resolve(*COUNT, words=3, app_repartition=3, app_changelog=3)
    assert configured.is_ready
    assert configured.topics_to_create == ()
    assert configured.metadata_hash == 5
    assert configured.epoch == 1


def test_internal_topic_has_configs_and_replication_factor() -> None:
    (one,) = resolve(
        part("0", "in", state=(internal("log", replication=3, cleanup_policy="compact"),)), **{"in": 2}
    ).topics_to_create
    assert (one.name, one.partition_count, one.replication_factor) == ("log", 2, 3)
    assert one.configs == {"cleanup.policy": "compact"}
    (one,) = resolve(part("0", "in", state=(internal("log"),)), **{"in": 2}).topics_to_create
    assert one.replication_factor is None


def test_fixed_repartition_count_sets_the_tasks_behind_it() -> None:
    configured = resolve(
        part("0", "words", writes=("r",)), part("1", reads=(internal("r", 7),), state=(internal("c"),)), words=3
    )
    assert configured.subtopologies is not None
    assert configured.subtopologies["1"].task_count == 7
    assert {topic.name: topic.partition_count for topic in configured.topics_to_create} == {"r": 7, "c": 7}


def test_chained_repartition_topics_are_counted_in_any_order() -> None:
    configured = resolve(
        part("0", reads=(internal("b"),), writes=("c",)),
        part("1", reads=(internal("c"),)),
        part("2", "words", writes=("a",)),
        part("3", reads=(internal("a"),), writes=("b",)),
        words=5,
    )
    assert {topic.partition_count for topic in configured.topics_to_create} == {5}


def test_very_many_chained_repartition_topics_stay_fast() -> None:
    """Each subtopology is decided once, whatever the order; a quadratic search would take minutes."""
    many = 30_000
    ids = [f"{number:05}" for number in range(many)]
    order = hash_map_order(ids)[::-1]  # against that in which subtopologies are gone through
    chain = [
        part(entry, reads=(internal(f"r{position}"),), writes=(f"r{position + 1}",), together=(((), (0,)),))
        for position, entry in enumerate(order[1:-1], 1)
    ]
    configured = resolve(
        part(order[0], "words", writes=("r1",)), *chain, part(order[-1], reads=(internal(f"r{many - 1}"),)), words=3
    )
    assert {subtopology.task_count for subtopology in (configured.subtopologies or {}).values()} == {3}
    assert len(configured.topics_to_create) == many - 1


def test_copartitioned_repartition_topic_takes_the_common_count() -> None:
    configured = resolve(
        part("0", "wide", writes=("r",)),
        part("1", "narrow", reads=(internal("r"),), together=(((0,), (0,)),)),
        wide=6,
        narrow=2,
    )
    assert [(topic.name, topic.partition_count) for topic in configured.topics_to_create] == [("r", 2)]


@pytest.mark.parametrize(
    ("parts", "topics", "code", "detail"),
    [
        (
            (part("0", "d", "b", "c", "a", "there"),),
            {"there": 1},
            StatusCode.MISSING_SOURCE_TOPICS,
            "Source topics a, b, c and 1 additional topics are missing.",
        ),
        (
            (part("0", "left", "right", together=(((0, 1), ()),)),),
            {"left": 2, "right": 3},
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            "Following topics do not have the same number of partitions: [{left=2, right=3}]",
        ),
        (
            (part("0", "in", writes=("r",)), part("1", "in", reads=(internal("r", 5),), together=(((0,), (0,)),))),
            {"in": 2},
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            "Number of partitions [5] of repartition topic [r] "
            "doesn't match number of partitions [2] of the source topic.",
        ),
        (
            (
                part("0", "in", writes=("r", "s")),
                part("1", reads=(internal("r", 5), internal("s", 4)), together=(((), (0, 1)),)),
            ),
            {"in": 2},
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            "Following topics do not have the same number of partitions: [{r=5, s=4}]",
        ),
        (
            (part("0", "in", state=(internal("log"),)),),
            {"in": 2, "log": 1},
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            "Existing topic log has different number of partitions: expected 2, found 1",
        ),
        (
            (part("0", "in", state=(internal("log"),)),),
            {"in": 2},
            StatusCode.MISSING_INTERNAL_TOPICS,
            "Internal topics are missing: log",
        ),
    ],
)
def test_missing_and_wrongly_partitioned_topics_are_reported(
    parts: tuple[k88.Subtopology, ...], topics: dict[str, int], code: StatusCode, detail: str
) -> None:
    configured = resolve(*parts, **topics)
    assert configured.status == TopologyStatus(code, detail)
    assert (configured.subtopologies is None) == (code != StatusCode.MISSING_INTERNAL_TOPICS)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            (part("0", reads=(internal("a"),), writes=("b",)), part("1", reads=(internal("b"),), writes=("a",))),
            "Failed to compute number of partitions for all repartition topics. "
            "There may be loops in the topology that cannot be resolved.",
        ),
        (
            (part("0", "in", reads=(internal("a"),)),),
            "Failed to compute number of partitions for all repartition topics, because "
            "a repartition source topic is never used as a sink topic.",
        ),
        (
            (part("0", "in", reads=(internal("a"),)), part("1", "in")),
            "Failed to compute number of partitions for all repartition topics, because "
            "a repartition source topic is never used as a sink topic.",
        ),
        ((part("0"),), "No source topics found for subtopology 0"),
    ],
)
def test_invalid_topology_fails(parts: tuple[k88.Subtopology, ...], message: str) -> None:
    with pytest.raises(KafkaError) as raised:
        resolve(*parts, **{"in": 1})
    assert (raised.value.code, raised.value.message) == (ErrorCode.STREAMS_INVALID_TOPOLOGY, message)


@pytest.mark.parametrize(
    "wrong",
    [
        (part("0", "in"), part("0", "in")),
        (part("0", "in", together=(((1,), ()),)),),
        (part("0", "in", together=(((-1,), ()),)),),
        (part("0", "in", together=(((), (0,)),)),),
        (part("0", "in", reads=(internal("r", -2),)),),
        (part("0", "in", state=(internal("c"), internal("c"))),),
    ],
)
def test_malformed_topology_gives_unknown_server_error(wrong: tuple[k88.Subtopology, ...]) -> None:
    with pytest.raises(KafkaError) as raised:
        resolve(*wrong, **{"in": 1})
    assert raised.value.code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_topic_names_are_checked_first() -> None:
    topology = k88.Topology(
        subtopologies=[part("0", "in", "in", writes=("__consumer_offsets",), reads=(internal("r"),))]
    )
    assert named_topics(topology) == ["in", "__consumer_offsets", "r"]
    with pytest.raises(KafkaError, match="Use of Kafka internal topics __consumer_offsets in a Kafka Streams topology"):
        check_names(topology)
    with pytest.raises(KafkaError, match=r"Topic names a b,\.\. are not valid topic names\."):
        check_names(k88.Topology(subtopologies=[part("0", "a b", "..", "fine")]))
    check_names(k88.Topology(subtopologies=[part("0", "fine")]))


def test_changelog_with_partition_count_fails() -> None:
    validate(k88.Topology(subtopologies=[part("0", "in", state=(internal("c"),))]))
    with pytest.raises(
        KafkaError, match="Changelog topic c must have an undefined partition count, but it is set to 4"
    ):
        validate(k88.Topology(subtopologies=[part("0", "in", state=(internal("c", 4),))]))


def test_topology_finds_the_subtopology_of_a_topic() -> None:
    configured = topology(*COUNT)
    assert configured.required_topics() == {"words", "app-repartition", "app-changelog"}
    assert configured.reads("words")
    assert not configured.reads("app-changelog")
    reader = configured.subtopology_of("app-repartition")
    assert reader is not None
    assert reader.subtopology_id == "1"
    assert configured.subtopology_of("app-changelog") is None


def test_topologies_compare_by_value() -> None:
    assert topology(*COUNT) == topology(*reversed(COUNT))
    assert topology(*COUNT) != topology(COUNT[0])


def test_description_has_partition_counts_once_ready() -> None:
    ready = described(resolve(*COUNT, words=3, app_repartition=3, app_changelog=3))
    sent = described(topology(*COUNT))
    for notified, count in ((ready, 3), (sent, 0)):
        assert notified.epoch == 1
        assert notified.subtopologies is not None
        first, second = notified.subtopologies
        assert (first.source_topics, first.repartition_sink_topics) == (["words"], ["app-repartition"])
        (changelog,) = second.state_changelog_topics
        assert (changelog.name, changelog.partitions) == ("app-changelog", count)
        assert [(topic_config.key, topic_config.value) for topic_config in changelog.topic_configs] == [
            ("cleanup.policy", "compact")
        ]


def test_endpoint_has_the_partitions_of_its_tasks() -> None:
    topics = existing({"wide": 4, "narrow": 1})
    configured = configure(topology(part("0", "wide", "narrow")), topics, 0)
    assert {
        endpoint_partition.topic: endpoint_partition.partitions
        for endpoint_partition in endpoint_partitions({"0": (1, 3)}, configured, topics)
    } == {
        "wide": [1, 3],
        "narrow": [1],
    }
    assert endpoint_partitions({"0": (1,)}, configured, existing({})) == []


@given(st.randoms(use_true_random=False))
def test_topology_is_ready_once_its_topics_are_created(random: Random) -> None:
    case = random_topology(random)
    try:
        sent = StreamsTopology.from_record(case.topology)
        configured = configure(sent, existing(case.topics), 0)
    except KafkaError:
        return
    if configured.subtopologies is None:
        return
    created = {topic.name: topic.partition_count for topic in configured.topics_to_create}
    again = configure(sent, existing(case.topics | created), 0)
    assert again.topics_to_create == ()
    if again.status is None:
        assert again.subtopologies == configured.subtopologies
