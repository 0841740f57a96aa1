"""What the handlers of share group APIs share: whether there are share groups at all, and who may be a member."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.cluster.features import SHARE_VERSION
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.session import Call

_LONGEST_MEMBER_ID: Final = 36  # a UUID as people read it


def share_groups_enabled(call: Call) -> bool:
    """Whether the cluster's `share.version` lets share groups be."""
    return call.broker.cluster.image.features.get(SHARE_VERSION, 0) >= 1


def require_share_groups(call: Call) -> None:
    """Refuse everything about share groups where they are not enabled."""
    if not share_groups_enabled(call):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)


def require_member_id(member_id: str | None) -> None:
    """Refuse what cannot be the id of a member."""
    if not member_id or len(member_id) > _LONGEST_MEMBER_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
