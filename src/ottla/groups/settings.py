"""The configs of groups as typed values with Kafka's defaults; `cluster.configs` validates them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.records.compression import CompressionType

if TYPE_CHECKING:
    from collections.abc import Callable

INT_MAX = 2**31 - 1

_NAMES = {
    "initial_rebalance_delay_ms": "group.initial.rebalance.delay.ms",
    "min_session_timeout_ms": "group.min.session.timeout.ms",
    "max_session_timeout_ms": "group.max.session.timeout.ms",
    "max_size": "group.max.size",
    "consumer_max_size": "group.consumer.max.size",
    "consumer_assignors": "group.consumer.assignors",
    "consumer_migration_policy": "group.consumer.migration.policy",
    "consumer_regex_refresh_interval_ms": "group.consumer.regex.refresh.interval.ms",
    "share_max_size": "group.share.max.size",
    "streams_max_size": "group.streams.max.size",
    "share_initialize_retry_interval_ms": "group.share.initialize.retry.interval.ms",
    "offset_metadata_max_bytes": "offset.metadata.max.bytes",
    "offsets_topic_compression": "offsets.topic.compression.codec",
    "offsets_retention_minutes": "offsets.retention.minutes",
    "offsets_retention_check_interval_ms": "offsets.retention.check.interval.ms",
}


@dataclass(slots=True, frozen=True)
class CoordinatorSettings:
    """The group configs of the broker."""

    initial_rebalance_delay_ms: int = 3_000
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = INT_MAX
    consumer_max_size: int = INT_MAX
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    consumer_migration_policy: str = "bidirectional"
    consumer_regex_refresh_interval_ms: int = 600_000
    share_max_size: int = 200
    share_initialize_retry_interval_ms: int = 30_000
    streams_max_size: int = INT_MAX
    offset_metadata_max_bytes: int = 4_096
    offsets_topic_compression: int = CompressionType.NONE
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    # The time within which the first join of a new classic member must be answered; a constant in Kafka.
    new_member_join_timeout_ms: int = 5 * 60 * 1_000

    @classmethod
    def read(cls, value: Callable[[str], Any]) -> CoordinatorSettings:
        """Read the settings from the broker's configs by name."""
        values = {field.name: value(_NAMES[field.name]) for field in fields(cls) if field.name in _NAMES}
        values["consumer_assignors"] = tuple(values["consumer_assignors"])
        values["consumer_migration_policy"] = str(values["consumer_migration_policy"]).lower()
        return cls(**values)

    @property
    def upgrade_enabled(self) -> bool:
        """Whether a classic group with members may be upgraded to a consumer group."""
        return self.consumer_migration_policy in ("bidirectional", "upgrade")

    @property
    def downgrade_enabled(self) -> bool:
        """Whether a consumer group may be downgraded when its last member of the consumer protocol leaves."""
        return self.consumer_migration_policy in ("bidirectional", "downgrade")

    @property
    def default_assignor(self) -> str:
        """The server-side assignor that is used when members request none."""
        return self.consumer_assignors[0]


class GroupSettings(NamedTuple):
    """The configs of one group."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    share_session_timeout_ms: int = 45_000
    share_heartbeat_interval_ms: int = 5_000
    share_assignment_interval_ms: int = 1_000
    streams_session_timeout_ms: int = 45_000
    streams_heartbeat_interval_ms: int = 5_000
    streams_assignment_interval_ms: int = 1_000
    streams_initial_rebalance_delay_ms: int = 3_000
    streams_num_standby_replicas: int = 0

    @classmethod
    def read(cls, value: Callable[[str], Any]) -> GroupSettings:
        """Read the settings from a group's configs by name."""
        return cls(
            value("consumer.session.timeout.ms"),
            value("consumer.heartbeat.interval.ms"),
            value("consumer.assignment.interval.ms"),
            value("share.session.timeout.ms"),
            value("share.heartbeat.interval.ms"),
            value("share.assignment.interval.ms"),
            value("streams.session.timeout.ms"),
            value("streams.heartbeat.interval.ms"),
            value("streams.assignment.interval.ms"),
            value("streams.initial.rebalance.delay.ms"),
            value("streams.num.standby.replicas"),
        )
