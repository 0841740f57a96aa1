"""Topic names: valid characters, and collisions of dots with underscores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.cluster.image import ClusterImage

MAX_TOPIC_NAME_LENGTH: Final = 249
_NAME_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def validate_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION for a name that is not valid."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_TOPIC_NAME_LENGTH:
        reason = f"the length of '{name}' is longer than the max allowed length {MAX_TOPIC_NAME_LENGTH}"
    elif not _NAME_CHARACTERS.issuperset(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def colliding_topic(image: ClusterImage, name: str) -> str | None:
    """Return an existing topic whose name differs only in dots and underscores, or None: metric names would collide."""
    if "." not in name and "_" not in name:
        return None
    unified = name.replace(".", "_")
    return next((other for other in image.topic_ids if other.replace(".", "_") == unified), None)
