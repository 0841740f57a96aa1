"""Invalid requests fail with Kafka's errors, checked in Kafka's order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k00_produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.k38_create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from ottla.protocol.messages.k57_update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.records.builder import build_batch
from ottla.records.iterate import Record
from tests.conversations.local_talk import LocalTalk

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def local() -> Iterator[LocalTalk]:
    talk = LocalTalk({})
    talk.create("t", 2)
    yield talk
    talk.close()


@pytest.mark.parametrize("time", [0, -1])
def test_request_with_expired_timeout_fails(local: LocalTalk, time: int) -> None:
    topic = CreatableTopic(name="late", num_partitions=1, replication_factor=1)
    created = local.quietly(CreateTopicsRequest(topics=[topic], timeout_ms=time), CreateTopicsResponse)
    assert [topic.error_code for topic in created.topics] == [ErrorCode.REQUEST_TIMED_OUT]
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=time)
    deleted = local.quietly(request, DeleteTopicsResponse)
    assert [response.error_code for response in deleted.responses] == [ErrorCode.REQUEST_TIMED_OUT]
    assert local.runtime.image.topic("late") is None
    assert local.runtime.image.topic("t") is not None


@pytest.mark.parametrize("version", [1, 2, 3])
def test_delegation_token_is_refused_in_every_version(local: LocalTalk, version: int) -> None:
    response = local.quietly(CreateDelegationTokenRequest(), CreateDelegationTokenResponse, version=version)
    assert response.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


@pytest.mark.parametrize(("level", "kind"), [(0, 1), (1, 1), (0, 3)])
def test_unknown_feature_is_refused(local: LocalTalk, level: int, kind: int) -> None:
    update = FeatureUpdateKey(feature="nobody", max_version_level=level, upgrade_type=kind)
    response = local.quietly(UpdateFeaturesRequest(feature_updates=[update]), UpdateFeaturesResponse)
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "for feature nobody." in (response.error_message or "")


def test_produce_errors_have_kafkas_order(local: LocalTalk) -> None:
    good = bytes(build_batch([Record(0, local.world.clock.now_ms(), None, b"v")]))
    data = [PartitionProduceData(index=index, records=records) for index, records in ((0, good), (1, b""), (7, b""))]
    request = ProduceRequest(acks=5, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=data)])
    response = local.quietly(request, ProduceResponse, version=12)
    assert {
        partition_response.index: partition_response.error_code
        for partition_response in response.responses[0].partition_responses
    } == {
        0: ErrorCode.INVALID_REQUIRED_ACKS,
        1: ErrorCode.INVALID_RECORD,
        7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.parametrize("unknown", [0, 3, 127])
def test_unknown_resource_type_fails_the_request(local: LocalTalk, unknown: int) -> None:
    resources = [DescribeConfigsResource(resource_type=kind, resource_name="t") for kind in (2, unknown)]
    response = local.quietly(DescribeConfigsRequest(resources=resources), DescribeConfigsResponse)
    assert [result.error_code for result in response.results] == [ErrorCode.INVALID_REQUEST] * 2


def test_last_of_a_repeated_partition_is_taken(local: LocalTalk) -> None:
    partitions = [DeleteRecordsPartition(partition_index=0, offset=offset) for offset in (99, 0)]
    topics = [DeleteRecordsTopic(name="t", partitions=partitions), DeleteRecordsTopic(name="t")]
    response = local.quietly(DeleteRecordsRequest(topics=topics, timeout_ms=1000), DeleteRecordsResponse)
    assert [[partition.error_code for partition in topic.partitions] for topic in response.topics] == [[ErrorCode.NONE]]
