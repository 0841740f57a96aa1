"""Topics as tables for analyses that compare records: of a log directory, or of a cluster that runs."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.analysis.inputs import InputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ADDRESS: Final = re.compile(r"^[\w.\-]+:\d+(,[\w.\-]+:\d+)*$")


class Place(NamedTuple):
    """Where topics are: a log directory or the addresses of a cluster, and one topic of it if only one is meant."""

    where: str
    topic: str | None = None

    @classmethod
    def parse(cls, text: str) -> Place:
        """`DIR`, `DIR#topic`, `host:port` or `host:port#topic`."""
        where, _, topic = text.partition("#")
        place = cls(where, topic or None)
        if not place.live and not os.path.isdir(where):
            raise InputError(f"{where} is neither a log directory nor the address of a cluster (host:port)")
        return place

    @property
    def live(self) -> bool:
        """Whether it is a cluster that runs."""
        return _ADDRESS.match(self.where) is not None and not os.path.exists(self.where)


def read_topic(spark: SparkSession, place: Place, *, committed: bool = True, batches: bool = False) -> DataFrame:
    """The records there, with headers; those of aborted transactions only if `committed` is off."""
    reader = spark.read.format("ottla" if place.live else "ottla-log").option("includeHeaders", "true")
    reader = reader.option("kafka.isolation.level", "read_committed" if committed else "read_uncommitted")
    if place.live:
        reader = reader.option("kafka.bootstrap.servers", place.where)
    elif batches:
        reader = reader.option("includeBatch", "true")
    if place.topic is not None:
        reader = reader.option("subscribe", place.topic)
    else:
        reader = reader.option("subscribePattern", "[^_].*|_[^_].*")  # Kafka's own topics left out
    return reader.load() if place.live else reader.load(place.where)
