"""Interfaces to the broker: the log, the topics, the configs and the sender of a request.

The broker implements them over its partitions and metadata image, tests over a list and a dict.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ottla.groups.settings import CoordinatorSettings, GroupSettings
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode
    from ottla.protocol.uuids import Uuid


class Appended(NamedTuple):
    """The base offset of an appended batch. `durable` completes with NONE or an error; None means already durable."""

    base_offset: int
    durable: Pending[ErrorCode] | None


class GroupLog(Protocol):
    """The partitions of `__consumer_offsets` that this node leads."""

    def append(self, partition: int, batch: bytearray) -> Appended:
        """Append a batch and assign its offsets; raise KafkaError if that fails."""
        ...


class Topic(Protocol):
    """A topic of the cluster."""

    @property
    def id(self) -> Uuid:
        """The topic's id."""
        ...

    @property
    def name(self) -> str:
        """The topic's name."""
        ...

    @property
    def partition_count(self) -> int:
        """The number of partitions."""
        ...

    def racks(self, partition: int) -> Sequence[str]:
        """Return the racks of a partition's replicas; brokers without a rack are left out."""
        ...


class Topics(Protocol):
    """The current topics of the cluster."""

    @property
    def version(self) -> int:
        """The offset of the metadata log: grows with every change."""
        ...

    def by_name(self, name: str) -> Topic | None:
        """Return the topic with a name."""
        ...

    def by_id(self, topic_id: Uuid) -> Topic | None:
        """Return the topic with an id."""
        ...

    def names(self) -> Iterable[str]:
        """Return all names in an order that does not depend on hashes."""
        ...


class Settings(Protocol):
    """The current configs; never cached by callers, because they are dynamic."""

    def coordinator(self) -> CoordinatorSettings:
        """Return the broker's group configs."""
        ...

    def group(self, group_id: str) -> GroupSettings:
        """Return the configs of a group: its dynamic configs, else the broker's defaults."""
        ...


def _allow_all(names: Sequence[str]) -> Sequence[str]:
    return names


@dataclass(slots=True, frozen=True)
class RequestContext:
    """The sender and the version of a request.

    `client_host` has Java's form of an address ("/127.0.0.1"). `describable` filters topic names by the sender's right
    to describe them, which limits what a subscribed regular expression matches.
    """

    version: int
    client_id: str = ""
    client_host: str = ""
    describable: Callable[[Sequence[str]], Sequence[str]] = field(default=_allow_all, compare=False)


class DeletedTopic(NamedTuple):
    """A deleted topic."""

    id: Uuid
    name: str
