"""FindCoordinator (10): every version and key type, creation of the internal topics, and errors."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k10_find_coordinator as k10
from tests.conversations.local_talk import LocalTalk

from .group_broker import GROUP, GroupBroker, versions

TOPICS = {0: "__consumer_offsets", 1: "__transaction_state", 2: "__share_group_state"}


def find_request(version: int, **fields: int) -> k10.FindCoordinatorRequest:
    if version < 4:
        return k10.FindCoordinatorRequest(key=GROUP, **fields)
    return k10.FindCoordinatorRequest(coordinator_keys=[GROUP], **fields)


@pytest.mark.parametrize("version", versions(10))
def test_coordinator_of_a_group_is_found_in_every_version(group_broker: GroupBroker, version: int) -> None:
    response = group_broker.ask(find_request(version), version)
    result = response if version < 4 else response.coordinators[0]
    assert (result.error_code, result.node_id, result.host, result.port) == (ErrorCode.NONE, 1, "127.0.0.1", 9092)


@pytest.mark.parametrize("key_type", TOPICS)
def test_internal_topic_is_created_on_first_use(key_type: int) -> None:
    local = LocalTalk({})
    key = f"{GROUP}:AAAAAAAAAAAAAAAAAAAAAA:0" if key_type == 2 else GROUP
    assert local.runtime.image.topic(TOPICS[key_type]) is None
    request = k10.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
    response = local.quietly(request, k10.FindCoordinatorResponse)
    assert [
        (coordinator.key, coordinator.error_code, coordinator.node_id) for coordinator in response.coordinators
    ] == [(key, 0, 1)]
    assert local.runtime.image.topic(TOPICS[key_type]) is not None
    local.close()


@pytest.mark.parametrize("key", ["g", "g:t:0", ":AAAAAAAAAAAAAAAAAAAAAA:0", "g:AAAAAAAAAAAAAAAAAAAAAA:x"])
def test_malformed_share_partition_fails(group_broker: GroupBroker, key: str) -> None:
    response = group_broker.ask(k10.FindCoordinatorRequest(key_type=2, coordinator_keys=[key]))
    assert [coordinator.error_code for coordinator in response.coordinators] == [ErrorCode.INVALID_REQUEST]


def test_share_key_type_before_version_6_fails(group_broker: GroupBroker) -> None:
    request = k10.FindCoordinatorRequest(key_type=2, coordinator_keys=["g:AAAAAAAAAAAAAAAAAAAAAA:0"])
    assert group_broker.ask(request, 5).coordinators[0].error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [1, 4])
def test_unknown_key_type_fails(group_broker: GroupBroker, version: int) -> None:
    response = group_broker.ask(find_request(version, key_type=9), version)
    failed = response if version < 4 else response.coordinators[0]
    assert (failed.error_code, failed.node_id) == (ErrorCode.INVALID_REQUEST, -1)


def test_denied_group_fails_alone(group_broker: GroupBroker) -> None:
    group_broker.deny(GROUP)
    response = group_broker.ask(k10.FindCoordinatorRequest(coordinator_keys=[GROUP, "h"]))
    codes = [coordinator.error_code for coordinator in response.coordinators]
    assert codes == [ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.NONE]
