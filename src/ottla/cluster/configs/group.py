"""Configs of a consumer, share or streams group."""

from __future__ import annotations

from typing import Final

from ottla.cluster.configs.key import ConfigKey
from ottla.cluster.configs.rules import OneOf, Range, ShareOffsetReset
from ottla.cluster.configs.values import ConfigType

GROUP_KEYS: Final[tuple[ConfigKey, ...]] = (
    ConfigKey(
        "consumer.assignment.interval.ms",
        ConfigType.INT,
        1000,
        "Shortest time between two computed assignments of a consumer group.",
        validator=Range(0),
        synonym="group.consumer.assignment.interval.ms",
        acts=True,
    ),
    ConfigKey(
        "consumer.heartbeat.interval.ms",
        ConfigType.INT,
        5000,
        "Heartbeat interval that the members of a consumer group are told to keep.",
        validator=Range(1),
        synonym="group.consumer.heartbeat.interval.ms",
        acts=True,
    ),
    ConfigKey(
        "consumer.session.timeout.ms",
        ConfigType.INT,
        45_000,
        "A member of a consumer group that is silent for this long is removed.",
        validator=Range(1),
        synonym="group.consumer.session.timeout.ms",
        acts=True,
    ),
    ConfigKey(
        "share.assignment.interval.ms",
        ConfigType.INT,
        1000,
        "Shortest time between two computed assignments of a share group.",
        validator=Range(0),
        synonym="group.share.assignment.interval.ms",
        acts=True,
    ),
    ConfigKey(
        "share.auto.offset.reset",
        ConfigType.STRING,
        "latest",
        "Where a share group starts in a partition it has never read: `earliest`, `latest`, or "
        "`by_duration:` with an ISO-8601 duration back from now.",
        validator=ShareOffsetReset(),
        acts=True,
    ),
    ConfigKey(
        "share.delivery.count.limit",
        ConfigType.INT,
        5,
        "Deliveries of one record to a share group before it is given up.",
        validator=Range(2),
        synonym="group.share.delivery.count.limit",
        acts=True,
    ),
    ConfigKey(
        "share.heartbeat.interval.ms",
        ConfigType.INT,
        5000,
        "Heartbeat interval that the members of a share group are told to keep.",
        validator=Range(1),
        synonym="group.share.heartbeat.interval.ms",
        acts=True,
    ),
    ConfigKey(
        "share.isolation.level",
        ConfigType.STRING,
        "read_uncommitted",
        "Whether a share group sees records of open and aborted transactions (`read_uncommitted`) or not "
        "(`read_committed`).",
        validator=OneOf(("read_committed", "read_uncommitted")),
        acts=True,
    ),
    ConfigKey(
        "share.partition.max.record.locks",
        ConfigType.INT,
        2000,
        "Records of one partition that may be locked by members of a share group at a time.",
        validator=Range(100),
        synonym="group.share.partition.max.record.locks",
        acts=True,
    ),
    ConfigKey(
        "share.record.lock.duration.ms",
        ConfigType.INT,
        30_000,
        "How long a member of a share group holds a record before it is offered to others.",
        validator=Range(1000),
        synonym="group.share.record.lock.duration.ms",
        acts=True,
    ),
    ConfigKey(
        "share.renew.acknowledge.enable",
        ConfigType.BOOLEAN,
        True,
        "Whether members of a share group may renew the lock of a record they hold.",
        acts=True,
    ),
    ConfigKey(
        "share.session.timeout.ms",
        ConfigType.INT,
        45_000,
        "A member of a share group that is silent for this long is removed.",
        validator=Range(1),
        synonym="group.share.session.timeout.ms",
        acts=True,
    ),
    ConfigKey(
        "streams.assignment.interval.ms",
        ConfigType.INT,
        1000,
        "Shortest time between two computed assignments of a streams group.",
        validator=Range(0),
        synonym="group.streams.assignment.interval.ms",
    ),
    ConfigKey(
        "streams.heartbeat.interval.ms",
        ConfigType.INT,
        5000,
        "Heartbeat interval that the members of a streams group are told to keep.",
        validator=Range(1),
        synonym="group.streams.heartbeat.interval.ms",
    ),
    ConfigKey(
        "streams.initial.rebalance.delay.ms",
        ConfigType.INT,
        3000,
        "Wait for further members after the first one joins an empty streams group.",
        validator=Range(0),
        synonym="group.streams.initial.rebalance.delay.ms",
    ),
    ConfigKey(
        "streams.num.standby.replicas",
        ConfigType.INT,
        0,
        "Standby copies of each stateful task of a streams group.",
        validator=Range(0),
        synonym="group.streams.num.standby.replicas",
    ),
    ConfigKey(
        "streams.session.timeout.ms",
        ConfigType.INT,
        45_000,
        "A member of a streams group that is silent for this long is removed.",
        validator=Range(1),
        synonym="group.streams.session.timeout.ms",
    ),
)
