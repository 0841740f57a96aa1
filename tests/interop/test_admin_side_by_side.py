"""Refused requests about voters and log directories, against Apache Kafka and ottla."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from ottla.client import Client
from ottla.protocol.messages.k34_alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.k35_describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from ottla.protocol.messages.k55_describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RequestPartitionData,
    RequestTopicData,
)
from ottla.protocol.messages.k80_add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse, Listener
from ottla.protocol.messages.k81_remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from ottla.protocol.schema import ZERO_UUID, Uuid
from tests.conversations.side_by_side import Talk, assert_alike

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ottla_node import OttlaNode

    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop

SOMEBODY = Uuid(bytes(range(16)))
LISTENERS = [Listener(name="CONTROLLER", host="127.0.0.1", port=9)]
Answers = dict[str, object]


def voters(client: Client) -> Answers:
    """Code and message of each refusal, with the ids of the two clusters made alike."""
    request = DescribeQuorumRequest(
        topics=[RequestTopicData(topic_name="__cluster_metadata", partitions=[RequestPartitionData(partition_index=0)])]
    )
    voter = client.to_any(request, DescribeQuorumResponse).topics[0].partitions[0].current_voters[0]
    mine = (voter.replica_id, voter.replica_directory_id)

    def add(**fields: object) -> tuple[int, str]:
        add_raft_voter_request = AddRaftVoterRequest(
            **{"cluster_id": None, "timeout_ms": 300_000, "voter_id": 9, "voter_directory_id": SOMEBODY} | fields  # type: ignore[arg-type]
        )
        response = client.to_any(add_raft_voter_request, AddRaftVoterResponse)
        return response.error_code, plain(response.error_message)

    def remove(**fields: object) -> tuple[int, str]:
        remove_raft_voter_request = RemoveRaftVoterRequest(
            **{"cluster_id": None, "voter_id": 9, "voter_directory_id": SOMEBODY} | fields  # type: ignore[arg-type]
        )
        response = client.to_any(remove_raft_voter_request, RemoveRaftVoterResponse)
        return response.error_code, plain(response.error_message)

    def plain(message: str | None) -> str:
        text = (message or "").replace(client.cluster_id or "?", "<cluster>").replace(str(mine[1]), "<mine>")
        return re.sub(r"\(Endpoints.*?\) for|\(\{.*?\}\) for", "(<endpoints>) for", text)

    return {
        "add, another cluster": add(cluster_id="another", listeners=LISTENERS),
        "add, no id": add(voter_id=-1, listeners=LISTENERS),
        "add, no directory": add(voter_directory_id=ZERO_UUID, listeners=LISTENERS),
        "add, no listener": add(listeners=[]),
        "add, the same again": add(voter_id=mine[0], listeners=LISTENERS),
        "remove, another cluster": remove(cluster_id="another"),
        "remove, no id": remove(voter_id=-1),
        "remove, no directory": remove(voter_directory_id=ZERO_UUID),
        "remove, a stranger": remove(),
        "remove, the last": remove(voter_id=mine[0], voter_directory_id=mine[1]),
    }


def moves(client: Client, topic: str) -> Answers:
    described = client.to_node(1, DescribeLogDirsRequest(topics=[]), DescribeLogDirsResponse)
    here = described.results[0].log_dir

    def move(path: str, name: str, partition: int = 0) -> int:
        alter_replica_log_dirs_request = AlterReplicaLogDirsRequest(
            dirs=[AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=name, partitions=[partition])])]
        )
        return (
            client.to_node(1, alter_replica_log_dirs_request, AlterReplicaLogDirsResponse)
            .results[0]
            .partitions[0]
            .error_code
        )

    return {
        "to where it is": move(here, topic),
        "to nowhere": move("/nowhere", topic),
        "an unknown topic": move(here, "unknown"),
        "an unknown partition": move(here, topic, 7),
        "an unknown topic to nowhere": move("/nowhere", "unknown"),
    }


def test_both_refuse_alike(apache_kafka: ApacheKafka, ottla_factory: Callable[..., OttlaNode]) -> None:
    result: list[Answers] = []
    with ottla_factory() as ottla:
        for where in (apache_kafka.bootstrap, ottla.bootstrap):
            with Client(where) as client:
                with closing(Talk(where, "")) as talk:
                    talk.create("moved-side-by-side")  # and wait until the broker has its log
                result.append({**voters(client), **moves(client, "moved-side-by-side")})
    assert_alike(*result)
