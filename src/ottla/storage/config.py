"""The topic configs that storage obeys, with Kafka's names and defaults (Kafka's LogConfig).

Validation of what a user sets is the cluster's; the values here were accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONG_MAX = (1 << 63) - 1
_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(slots=True, frozen=True)
class LogConfig:
    """The configs of one log. Immutable: a running log gets a new one."""

    cleanup_policy: tuple[str, ...] = ("delete",)
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = _DAY_MS
    file_delete_delay_ms: int = 60_000
    flush_messages: int = _LONG_MAX
    flush_ms: int = _LONG_MAX
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = _LONG_MAX
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = _LONG_MAX
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    preallocate: bool = False
    retention_bytes: int = -1
    retention_ms: int = 7 * _DAY_MS
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * _DAY_MS

    @property
    def compact(self) -> bool:
        """Whether `cleanup.policy` has `compact`."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether `cleanup.policy` has `delete`."""
        return "delete" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """The age at which a segment rolls: `segment.ms`, or `max.compaction.lag.ms` if that is shorter."""
        return min(self.max_compaction_lag_ms, self.segment_ms) if self.compact else self.segment_ms

    @property
    def log_append_time(self) -> bool:
        """Whether `message.timestamp.type` is LogAppendTime."""
        return self.message_timestamp_type == "LogAppendTime"

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], defaults: LogConfig | None = None) -> LogConfig:
        """Return the config of topic properties (`segment.bytes`, ...) over `defaults`; ignore other keys."""
        values: dict[str, object] = {}
        base = defaults if defaults is not None else cls()
        for field in fields(cls):
            text = properties.get(field.name.replace("_", "."))
            if text is None and field.name == "segment_bytes":
                text = properties.get("internal.segment.bytes")
            values[field.name] = getattr(base, field.name) if text is None else _parse(field.name, text)
        return cls(**values)  # type: ignore[arg-type]


_KINDS: dict[str, type] = {field.name: type(field.default) for field in fields(LogConfig)}


def _parse(name: str, text: str) -> object:
    kind = _KINDS[name]
    if kind is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is bool:
        return text.strip().lower() == "true"
    if kind is int:
        return int(text)
    if kind is float:
        return float(text)
    return text
