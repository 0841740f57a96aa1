"""What the handlers of share group APIs share: who may be a member."""

from __future__ import annotations

from typing import Final

from ottla.protocol.errors import ErrorCode, KafkaError

_LONGEST_MEMBER_ID: Final = 36  # a UUID as people read it


def require_member_id(member_id: str | None) -> None:
    """Refuse what cannot be the id of a member."""
    if not member_id or len(member_id) > _LONGEST_MEMBER_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
