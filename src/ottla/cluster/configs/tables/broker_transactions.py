"""Broker configs of transactions and producer ids."""

from __future__ import annotations

from typing import Final

from ottla.cluster.configs.key import ConfigKey, UpdateMode
from ottla.cluster.configs.rules import Range
from ottla.cluster.configs.values import ConfigType

BROKER_TRANSACTIONS_KEYS: Final[tuple[ConfigKey, ...]] = (
    ConfigKey(
        "add.partitions.to.txn.retry.backoff.max.ms",
        ConfigType.INT,
        100,
        "Longest time the broker spends retrying to add a partition to a transaction on the producer's behalf.",
        validator=Range(0),
        acts=True,
    ),
    ConfigKey(
        "add.partitions.to.txn.retry.backoff.ms",
        ConfigType.INT,
        20,
        "Pause between two tries to add a partition to a transaction on the producer's behalf.",
        validator=Range(1),
        acts=True,
    ),
    ConfigKey(
        "producer.id.expiration.check.interval.ms",
        ConfigType.INT,
        600_000,
        "How often expired producer ids are looked for.",
        validator=Range(1),
        internal=True,
    ),
    ConfigKey(
        "producer.id.expiration.ms",
        ConfigType.INT,
        86_400_000,
        "Time without records after which a producer id is removed.",
        validator=Range(1),
        mode=UpdateMode.CLUSTER_WIDE,
        acts=True,
    ),
    ConfigKey(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        ConfigType.INT,
        10_000,
        "How often transactions past their timeout are looked for and aborted.",
        validator=Range(1),
        acts=True,
    ),
    ConfigKey(
        "transaction.max.timeout.ms",
        ConfigType.INT,
        900_000,
        "Longest transaction timeout that a producer may request.",
        validator=Range(1),
        acts=True,
    ),
    ConfigKey(
        "transaction.partition.verification.enable",
        ConfigType.BOOLEAN,
        True,
        "Check that a partition was added to the transaction before its records are accepted.",
        mode=UpdateMode.CLUSTER_WIDE,
        acts=True,
    ),
    ConfigKey(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        ConfigType.INT,
        3_600_000,
        "How often expired transactional ids are looked for.",
        validator=Range(1),
        acts=True,
    ),
    ConfigKey(
        "transaction.state.log.load.buffer.size",
        ConfigType.INT,
        5_242_880,
        "Bytes read at a time when transaction state is loaded.",
        validator=Range(1),
    ),
    ConfigKey(
        "transaction.state.log.min.isr",
        ConfigType.INT,
        2,
        "In-sync replicas that the transaction state topic needs.",
        validator=Range(1),
        acts=True,
    ),
    ConfigKey(
        "transaction.state.log.num.partitions",
        ConfigType.INT,
        50,
        "Partitions of the transaction state topic; not to be changed later.",
        validator=Range(1),
        acts=True,
    ),
    ConfigKey(
        "transaction.state.log.replication.factor",
        ConfigType.SHORT,
        3,
        "Replicas of the transaction state topic; with fewer brokers, all of them.",
        validator=Range(1),
        acts=True,
    ),
    ConfigKey(
        "transaction.state.log.segment.bytes",
        ConfigType.INT,
        104_857_600,
        "Segment size of the transaction state topic.",
        validator=Range(1),
        acts=True,
    ),
    ConfigKey(
        "transaction.two.phase.commit.enable",
        ConfigType.BOOLEAN,
        False,
        "Let producers prepare transactions that an outside coordinator finishes.",
        acts=True,
    ),
    ConfigKey(
        "transactional.id.expiration.ms",
        ConfigType.INT,
        604_800_000,
        "A transactional id without activity for this long is forgotten.",
        validator=Range(1),
        acts=True,
    ),
)
