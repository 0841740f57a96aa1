"""What the groups need from the broker around them: a log to write to, the topics, the configs, who is asking.

Declarations only. The broker implements them over its partitions and its metadata image, tests over a list and a dict.
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
    """Where a batch went, and when it is safe: `durable` is completed with NONE or an error; None means at once."""

    base_offset: int
    durable: Pending[ErrorCode] | None


class GroupLog(Protocol):
    """The partitions of `__consumer_offsets` that this node leads."""

    def append(self, partition: int, batch: bytearray) -> Appended:
        """Append one batch, whose offsets are for the log to set; KafkaError when it cannot."""
        ...


class Topic(Protocol):
    """One topic as the groups see it."""

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
        """How many partitions it has."""
        ...

    def racks(self, partition: int) -> Sequence[str]:
        """The racks of a partition's replicas, those of brokers without a rack left out."""
        ...


class Topics(Protocol):
    """The topics of the cluster, as they are now."""

    @property
    def version(self) -> int:
        """A number that grows with every change: the offset of the metadata log."""
        ...

    def by_name(self, name: str) -> Topic | None:
        """The topic of that name."""
        ...

    def by_id(self, topic_id: Uuid) -> Topic | None:
        """The topic with that id."""
        ...

    def names(self) -> Iterable[str]:
        """All names, in an order that does not depend on hashes."""
        ...


class Settings(Protocol):
    """The configs in force; asked anew each time, because they change while the broker runs."""

    def coordinator(self) -> CoordinatorSettings:
        """Those of the broker."""
        ...

    def group(self, group_id: str) -> GroupSettings:
        """Those of one group: its own where it has any, else the broker's."""
        ...


def _allow_all(names: Sequence[str]) -> Sequence[str]:
    return names


@dataclass(slots=True, frozen=True)
class RequestContext:
    """Who sent a request, in which version.

    `client_host` is written as Java writes an address ("/127.0.0.1"); `describable` keeps of some topic names those
    that the sender may describe, which is what a regular expression of theirs is allowed to match.
    """

    version: int
    client_id: str = ""
    client_host: str = ""
    describable: Callable[[Sequence[str]], Sequence[str]] = field(default=_allow_all, compare=False)


class DeletedTopic(NamedTuple):
    """A topic that is no more."""

    id: Uuid
    name: str
