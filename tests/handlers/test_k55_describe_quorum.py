"""DescribeQuorum (55): the voter's state and endpoint, with dynamic and with static voters, as Kafka 4.3.1 answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.k55_describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RequestPartitionData,
    RequestTopicData,
)
from ottla.protocol.schema import ZERO_UUID
from tests.conversations.broker import assert_as_kafka
from tests.conversations.local_talk import LocalTalk

if TYPE_CHECKING:
    from tests.conversations.side_by_side import Talk

STATIC = {"controller.quorum.voters": "1@kafka.example:9193", "controller.listener.names": "QUORUM"}


def describe(local: LocalTalk, version: int = 2) -> DescribeQuorumResponse:
    partitions = [RequestPartitionData(partition_index=0)]
    topics = [RequestTopicData(topic_name="__cluster_metadata", partitions=partitions)]
    return local.quietly(DescribeQuorumRequest(topics=topics), DescribeQuorumResponse, version=version)


def finalized_features(local: LocalTalk) -> dict[str, int]:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    response = local.quietly(request, ApiVersionsResponse)
    return {feature.name: feature.max_version_level for feature in response.finalized_features}


@pytest.mark.parametrize("version", [1, 2])
def test_leader_times_are_the_current_time(version: int) -> None:
    local = LocalTalk({})
    voter = describe(local, version).topics[0].partitions[0].current_voters[0]
    now = local.world.clock.now_ms()
    assert (voter.last_fetch_timestamp, voter.last_caught_up_timestamp) == (now, now)
    local.close()


def test_dynamic_voter_has_the_endpoint_of_the_voters_record() -> None:
    local = LocalTalk({})
    response = describe(local)
    listeners = [(listener.name, listener.host, listener.port) for listener in response.nodes[0].listeners]
    assert listeners == [("CONTROLLER", "localhost", 9093)]
    voter = response.topics[0].partitions[0].current_voters[0]
    assert voter.replica_directory_id == local.runtime.metadata.voters[0].directory_id
    assert finalized_features(local)["kraft.version"] == 1
    local.close()


def test_static_voter_has_the_endpoint_of_the_config_and_kraft_version_0() -> None:
    local = LocalTalk(STATIC)
    for _ in range(2):
        response = describe(local)
        listeners = [(listener.name, listener.host, listener.port) for listener in response.nodes[0].listeners]
        assert listeners == [("QUORUM", "kafka.example", 9193)]
        assert response.topics[0].partitions[0].current_voters[0].replica_directory_id == ZERO_UUID
        assert "kraft.version" not in finalized_features(local)
        local.restart()
    local.close()


def test_responses_are_those_of_kafka(broker_talk: Talk) -> None:
    assert_as_kafka("quorum", broker_talk)
