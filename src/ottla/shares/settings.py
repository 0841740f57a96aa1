"""The share configs of a group, parsed; `cluster.configs` defines and validates them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

EARLIEST, LATEST, BY_DURATION = "earliest", "latest", "by_duration:"
_DURATION: Final = re.compile(
    r"[+]?P(?:[+]?([0-9]+)D)?(?:T(?:[+]?([0-9]+)H)?(?:[+]?([0-9]+)M)?(?:[+]?([0-9]+(?:\.[0-9]*)?)S)?)?", re.IGNORECASE
)


class ShareSettings(NamedTuple):
    """The configs of one group, with Kafka's defaults."""

    auto_offset_reset: str = "latest"
    delivery_count_limit: int = 5
    max_record_locks: int = 2_000
    read_committed: bool = False
    record_lock_duration_ms: int = 30_000
    renew_enabled: bool = True

    @classmethod
    def read(cls, value: Callable[[str], Any]) -> ShareSettings:
        """Read the settings from a group's configs, which `value` looks up by name."""
        return cls(
            auto_offset_reset=str(value("share.auto.offset.reset")),
            delivery_count_limit=value("share.delivery.count.limit"),
            max_record_locks=value("share.partition.max.record.locks"),
            read_committed=value("share.isolation.level") == "read_committed",
            record_lock_duration_ms=value("share.record.lock.duration.ms"),
            renew_enabled=value("share.renew.acknowledge.enable"),
        )


def duration_ms(text: str) -> int:
    """Return the milliseconds of an ISO-8601 duration that was validated when it was set."""
    match = _DURATION.fullmatch(text)
    assert match is not None, text
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return int(((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1_000)
