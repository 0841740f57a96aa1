"""Read the topics of a log directory or of a running cluster as Spark tables, for analyses that compare records."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.analysis.inputs import InputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ADDRESS: Final = re.compile(r"^[\w.\-]+:\d+(,[\w.\-]+:\d+)*$")


class TopicLocation(NamedTuple):
    """A log directory or the bootstrap addresses of a cluster, with one topic or (None) all of them."""

    where: str
    topic: str | None = None

    @classmethod
    def parse(cls, text: str) -> TopicLocation:
        """Parse `DIR`, `DIR#topic`, `host:port` or `host:port#topic`; raise `InputError` if there is no such folder."""
        where, _, topic = text.partition("#")
        location = cls(where, topic or None)
        if not location.is_cluster and not os.path.isdir(where):
            raise InputError(f"{where} is neither a log directory nor the address of a cluster (host:port)")
        return location

    def __str__(self) -> str:
        return f"{self.where}#{self.topic}" if self.topic else self.where

    @property
    def is_cluster(self) -> bool:
        """Whether this is a running cluster."""
        return _ADDRESS.match(self.where) is not None and not os.path.exists(self.where)


def read_topic(
    spark: SparkSession, location: TopicLocation, *, committed: bool = True, batches: bool = False
) -> DataFrame:
    """Return the records with headers; `batches` adds columns of their batches (log directories only).

    Records of aborted transactions are included only if `committed` is off.
    """
    reader = spark.read.format("ottla" if location.is_cluster else "ottla-log").option("includeHeaders", "true")
    reader = reader.option("kafka.isolation.level", "read_committed" if committed else "read_uncommitted")
    if location.is_cluster:
        reader = reader.option("kafka.bootstrap.servers", location.where)
    elif batches:
        reader = reader.option("includeBatch", "true")
    if location.topic is not None:
        reader = reader.option("subscribe", location.topic)
    else:
        reader = reader.option("subscribePattern", "[^_].*|_[^_].*")  # without Kafka's internal topics
    return reader.load() if location.is_cluster else reader.load(location.where)
