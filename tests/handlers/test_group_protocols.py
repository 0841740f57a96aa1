"""Groups of a newer protocol are refused where the cluster's features or the broker's configs leave it out."""

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
ASKED: dict[str, tuple[tuple[Any, Any], tuple[Any, Any]]] = {
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
    """Whether both, a heartbeat and a description, are told that there is no such thing."""
    (beat, beaten), (describe, described) = ASKED[protocol]
    found = [
        local.quietly(beat, beaten).error_code == ErrorCode.UNSUPPORTED_VERSION,
        local.quietly(describe, described).groups[0].error_code == ErrorCode.UNSUPPORTED_VERSION,
    ]
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("protocol", ASKED)
def test_without_its_feature_a_protocol_is_refused(protocol: str) -> None:
    local = LocalTalk({})
    local.create("__consumer_offsets")
    assert not any(refuses(local, each) for each in ASKED)
    change = k57.FeatureUpdateKey(feature=FEATURES[protocol], max_version_level=0, upgrade_type=SAFE_DOWNGRADE)
    request = k57.UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[change])
    assert local.quietly(request, k57.UpdateFeaturesResponse).error_code == 0
    assert [each for each in ASKED if refuses(local, each)] == [protocol]
    local.close()


@pytest.mark.parametrize(
    ("spoken", "refused"),
    [("classic", ["consumer", "streams"]), ("classic,consumer", ["streams"]), ("classic,streams", ["consumer"])],
)
def test_a_broker_refuses_the_protocols_that_it_does_not_speak(spoken: str, refused: list[str]) -> None:
    """Share groups are left to their feature alone, in Kafka as well."""
    local = LocalTalk({"group.coordinator.rebalance.protocols": spoken})
    local.create("__consumer_offsets")
    assert [each for each in ASKED if refuses(local, each)] == refused
    local.close()
