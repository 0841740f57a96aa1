"""Share groups are refused while `share.version` is not finalized."""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k57_update_features as k57
from ottla.protocol.messages import k76_share_group_heartbeat as k76
from ottla.protocol.messages import k77_share_group_describe as k77
from ottla.protocol.messages import k90_describe_share_group_offsets as k90
from ottla.protocol.messages import k91_alter_share_group_offsets as k91
from ottla.protocol.messages import k92_delete_share_group_offsets as k92
from tests.conversations.local_talk import LocalTalk

DOWNGRADE = 2


def test_share_groups_require_share_version() -> None:
    local = LocalTalk({})
    local.create("t")
    local.create("__consumer_offsets")
    beat = k76.ShareGroupHeartbeatRequest(group_id="g", member_id="m", subscribed_topic_names=["t"])
    assert local.quietly(beat, k76.ShareGroupHeartbeatResponse).error_code == 0
    change = k57.FeatureUpdateKey(feature="share.version", max_version_level=0, upgrade_type=DOWNGRADE)
    response = local.quietly(
        k57.UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[change]), k57.UpdateFeaturesResponse
    )
    assert response.error_code == 0
    expected = k90.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=None)
    refused = [
        local.quietly(beat, k76.ShareGroupHeartbeatResponse).error_code,
        local.quietly(k77.ShareGroupDescribeRequest(group_ids=["g"]), k77.ShareGroupDescribeResponse)
        .groups[0]
        .error_code,
        local.quietly(k90.DescribeShareGroupOffsetsRequest(groups=[expected]), k90.DescribeShareGroupOffsetsResponse)
        .groups[0]
        .error_code,
        local.quietly(k91.AlterShareGroupOffsetsRequest(group_id="g"), k91.AlterShareGroupOffsetsResponse).error_code,
        local.quietly(k92.DeleteShareGroupOffsetsRequest(group_id="g"), k92.DeleteShareGroupOffsetsResponse).error_code,
    ]
    local.close()
    assert refused == [ErrorCode.UNSUPPORTED_VERSION] * 5
