"""ConsumerGroupHeartbeat (68): joining in both versions, regular expressions, configs and errors."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k44_incremental_alter_configs as k44
from ottla.protocol.messages import k68_consumer_group_heartbeat as k68
from ottla.protocol.messages import k69_consumer_group_describe as k69

from .group_broker import GROUP, MEMBER_ID, TOPIC, GroupBroker, versions

GROUP_RESOURCE = 32
JOINING = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [TOPIC], "topic_partitions": []}


def heartbeat(broker: GroupBroker, epoch: int = 0, *, version: int = 1, **fields: Any) -> Any:
    request = k68.ConsumerGroupHeartbeatRequest(
        **{
            "group_id": GROUP,
            "member_id": MEMBER_ID,
            "member_epoch": epoch,
            **(JOINING if epoch == 0 else {}),
            **fields,
        }
    )
    return broker.ask(request, version)


def assigned(response: k68.ConsumerGroupHeartbeatResponse) -> list[tuple[Any, list[int]]] | None:
    if response.assignment is None:
        return None
    return [(topic.topic_id, topic.partitions) for topic in response.assignment.topic_partitions]


def members(broker: GroupBroker) -> int:
    (group,) = broker.ask(k69.ConsumerGroupDescribeRequest(group_ids=[GROUP])).groups
    return len(group.members)


@pytest.mark.parametrize("version", versions(68))
def test_joining_member_receives_all_partitions(group_broker: GroupBroker, version: int) -> None:
    joined = heartbeat(group_broker, version=version)
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (ErrorCode.NONE, MEMBER_ID, 2)
    assert assigned(joined) == [(group_broker.topic_id(), [0, 1])]
    later = heartbeat(group_broker, 2, version=version)
    assert (later.member_epoch, assigned(later)) == (2, None)


def test_member_id_is_generated_in_version_0_and_required_in_version_1(group_broker: GroupBroker) -> None:
    assert len(heartbeat(group_broker, version=0, member_id="").member_id) == 22
    failed = heartbeat(group_broker, version=1, member_id="")
    assert (failed.error_code, failed.error_message) == (ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"epoch": 7}, ErrorCode.FENCED_MEMBER_EPOCH),
        ({"epoch": 1, "member_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"epoch": 1, "group_id": "none"}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_regex": "["}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"server_assignor": "none"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
    ],
)
def test_invalid_heartbeat_fails(group_broker: GroupBroker, fields: dict[str, Any], code: ErrorCode) -> None:
    heartbeat(group_broker)
    assert heartbeat(group_broker, **fields).error_code == code


def test_leaving_member_is_removed(group_broker: GroupBroker) -> None:
    heartbeat(group_broker)
    assert heartbeat(group_broker, -1).error_code == ErrorCode.NONE
    assert members(group_broker) == 0


def test_regular_expression_matches_only_topics_that_may_be_described(group_broker: GroupBroker) -> None:
    for name in ("news-1", "news-2"):
        group_broker.create(name)
    group_broker.deny("news-2")
    joined = heartbeat(group_broker, subscribed_topic_names=None, subscribed_topic_regex="news.*")
    group_broker.pause()
    assert assigned(heartbeat(group_broker, joined.member_epoch)) == [(group_broker.topic_id("news-1"), [0])]


def configure(broker: GroupBroker, name: str, value: int) -> ErrorCode:
    config = k44.AlterableConfig(name=name, config_operation=0, value=str(value))
    resource = k44.AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=GROUP, configs=[config])
    response = broker.ask(k44.IncrementalAlterConfigsRequest(resources=[resource]))
    return ErrorCode(response.responses[0].error_code)


def test_group_configs_apply_from_the_next_heartbeat() -> None:
    broker = GroupBroker({"group.consumer.max.session.timeout.ms": "60000"})
    joined = heartbeat(broker)
    assert joined.heartbeat_interval_ms == 5_000
    assert configure(broker, "consumer.heartbeat.interval.ms", 5_500) is ErrorCode.NONE
    assert configure(broker, "consumer.session.timeout.ms", 50_000) is ErrorCode.NONE
    assert heartbeat(broker, joined.member_epoch).heartbeat_interval_ms == 5_500
    broker.advance(49)
    assert members(broker) == 1
    broker.advance(2)
    assert members(broker) == 0
    heartbeat(broker)
    assert configure(broker, "consumer.session.timeout.ms", 60_001) is ErrorCode.INVALID_CONFIG
    broker.advance(49)
    assert members(broker) == 1
    broker.close()


@pytest.mark.parametrize(
    ("denied", "code"),
    [(GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED), (TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED)],
)
def test_unauthorized_heartbeat_fails(group_broker: GroupBroker, denied: str, code: ErrorCode) -> None:
    group_broker.deny(denied)
    assert heartbeat(group_broker).error_code == code
