"""Group protocols that the cluster's features or the broker's configs disable: every API of them is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k57_update_features as k57
from ottla.protocol.messages import k68_consumer_group_heartbeat as k68
from ottla.protocol.messages import k69_consumer_group_describe as k69
from ottla.protocol.messages import k76_share_group_heartbeat as k76
from ottla.protocol.messages import k77_share_group_describe as k77
from ottla.protocol.messages import k88_streams_group_heartbeat as k88
from ottla.protocol.messages import k89_streams_group_describe as k89
from tests.conversations.local_talk import LocalTalk

SAFE_DOWNGRADE = 2
MEMBER = {"group_id": "g", "member_id": "AAAAAAAAAAAAAAAAAAAAAA"}
REQUESTS: dict[str, tuple[tuple[Any, Any], tuple[Any, Any]]] = {
    "consumer": (
        (k68.ConsumerGroupHeartbeatRequest(**MEMBER), k68.ConsumerGroupHeartbeatResponse),
        (k69.ConsumerGroupDescribeRequest(group_ids=["g"]), k69.ConsumerGroupDescribeResponse),
    ),
    "share": (
        (k76.ShareGroupHeartbeatRequest(**MEMBER), k76.ShareGroupHeartbeatResponse),
        (k77.ShareGroupDescribeRequest(group_ids=["g"]), k77.ShareGroupDescribeResponse),
    ),
    "streams": (
        (k88.StreamsGroupHeartbeatRequest(**MEMBER), k88.StreamsGroupHeartbeatResponse),
        (k89.StreamsGroupDescribeRequest(group_ids=["g"]), k89.StreamsGroupDescribeResponse),
    ),
}
FEATURES = {"consumer": "group.version", "share": "share.version", "streams": "streams.version"}


def refuses(local: LocalTalk, protocol: str) -> bool:
    """Return whether heartbeats and descriptions get UNSUPPORTED_VERSION."""
    (heartbeat, heartbeat_response), (describe, describe_response) = REQUESTS[protocol]
    code = local.quietly(heartbeat, heartbeat_response).error_code
    described = local.quietly(describe, describe_response).groups[0].error_code
    assert (code == ErrorCode.UNSUPPORTED_VERSION) == (described == ErrorCode.UNSUPPORTED_VERSION)
    return bool(code == ErrorCode.UNSUPPORTED_VERSION)


@pytest.mark.parametrize("protocol", REQUESTS)
def test_protocol_without_its_feature_is_refused(protocol: str) -> None:
    local = LocalTalk({})
    local.create("__consumer_offsets")
    assert not any(refuses(local, protocol_name) for protocol_name in REQUESTS)
    change = k57.FeatureUpdateKey(feature=FEATURES[protocol], max_version_level=0, upgrade_type=SAFE_DOWNGRADE)
    request = k57.UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[change])
    assert local.quietly(request, k57.UpdateFeaturesResponse).error_code == 0
    assert [protocol_name for protocol_name in REQUESTS if refuses(local, protocol_name)] == [protocol]
    local.close()


@pytest.mark.parametrize(
    ("enabled", "refused"),
    [("classic", ["consumer", "streams"]), ("classic,consumer", ["streams"]), ("classic,streams", ["consumer"])],
)
def test_protocol_that_the_config_does_not_list_is_refused(enabled: str, refused: list[str]) -> None:
    """The config does not concern share groups, as in Kafka."""
    local = LocalTalk({"group.coordinator.rebalance.protocols": enabled})
    local.create("__consumer_offsets")
    assert [protocol_name for protocol_name in REQUESTS if refuses(local, protocol_name)] == refused
    local.close()
