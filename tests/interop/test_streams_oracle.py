"""Task assignment and topology resolution against Kafka's classes, with random groups and topologies."""

from __future__ import annotations

import json
from base64 import b64encode
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from ottla.groups.streams.assignor import assign
from ottla.groups.streams.internal_topics import configure
from ottla.groups.streams.topology import ConfiguredTopology, StreamsTopology, described
from ottla.hashing.java import timeline_map_order
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages import k89_streams_group_describe as k89
from tests.groups.streams.cases import Case, Group, existing, random_group, random_topology

from .jvm import jvm

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.interop
CASES = 3000


def kafkas(questions: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    stdin = "".join(json.dumps(question) + "\n" for question in questions).encode()
    return [json.loads(line) for line in jvm().run("StreamsOracle", stdin=stdin, log_level="ERROR").stdout.splitlines()]


def test_tasks_equal_kafkas_sticky_assignor(kafka_jvm: object) -> None:
    groups = [random_group(Random(seed)) for seed in range(CASES)]
    for seed, (group, expected) in enumerate(zip(groups, kafkas(map(_asked, groups)), strict=True)):
        result = {
            member_id: {kind: _listed(tasks) for kind, tasks in value._asdict().items()}
            for member_id, value in assign(group.members, group.subtopologies, group.standbys).items()
        }
        assert result == expected, f"seed {seed}"


def _asked(group: Group) -> dict[str, Any]:
    return {
        "members": {
            member_id: {
                "process": spec.process_id,
                "active": _listed(spec.target.active),
                "standby": _listed(spec.target.standby),
            }
            for member_id, spec in group.members.items()
        },
        "subtopologies": {
            name: [subtopology.task_count, subtopology.is_stateful] for name, subtopology in group.subtopologies.items()
        },
        "standbys": group.standbys,
    }


def _listed(tasks: Any) -> dict[str, list[int]]:
    return {name: list(partitions) for name, partitions in tasks.items()}


def test_group_members_have_kafkas_hash_order(kafka_jvm: object) -> None:
    ids = [[f"m{Random(seed).randrange(10**9)}{index}" for index in range(seed)] for seed in range(200)]
    assert [timeline_map_order(entry) for entry in ids] == [
        kafka["order"] for kafka in kafkas({"keys": entry} for entry in ids)
    ]


def test_topologies_equal_kafkas(kafka_jvm: object) -> None:
    cases = [random_topology(Random(seed)) for seed in range(CASES)]
    questions = [{"topology": b64encode(case.topology.encode(0)).decode(), "topics": case.topics} for case in cases]
    notified = set()
    for seed, (case, expected) in enumerate(zip(cases, kafkas(questions), strict=True)):
        assert _resolved(case) == expected, f"seed {seed}"
        notified.add(expected.get("status", expected.get("error", "ready")))
    assert notified == {"ready", 1, 2, 3, -1, 130}


def _resolved(case: Case) -> dict[str, Any]:
    try:
        topology = StreamsTopology.from_record(case.topology)
        configured = configure(topology, existing(case.topics), 7)
    except KafkaError as error:
        return {"error": error.code, "message": error.message}
    assert configured.metadata_hash == 7
    required = topology.required_topics()
    readers = {topic: topology.subtopology_of(topic) for topic in required}
    response: dict[str, Any] = {
        "tasks": {name: subtopology.task_count for name, subtopology in (configured.subtopologies or {}).items()},
        "create": [
            {
                "name": topic.name,
                "partitions": topic.partition_count,
                "replication": topic.replication_factor or -1,
                "configs": dict(topic.configs),
            }
            for topic in configured.topics_to_create
        ],
        "described": _told(configured),
        "sent": _told(topology),
        "required": sorted(required),
        "readers": {topic: tasks.subtopology_id for topic, tasks in readers.items() if tasks is not None},
    }
    if configured.status is not None:
        response |= {"status": configured.status.code, "detail": configured.status.detail}
    return response


def _told(topology: StreamsTopology | ConfiguredTopology) -> str:
    group = k89.DescribedGroup(topology=described(topology))
    return b64encode(k89.StreamsGroupDescribeResponse(groups=[group]).encode(0)).decode()
