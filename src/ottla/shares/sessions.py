"""Share sessions: what each member fetches from one node, remembered by group and member id (KIP-932).

A session belongs to a connection and ends with it. Nothing here knows what a record is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ottla.protocol.schema import Uuid

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
LARGEST_EPOCH = 2**31 - 1


class Place(NamedTuple):
    """A partition by its topic's id."""

    topic_id: Uuid
    partition: int


class SessionKey(NamedTuple):
    """Who has a session."""

    group_id: str
    member_id: str


@dataclass(slots=True, eq=False)
class ShareSession:
    """One member's partitions, in the order in which they are served, and whether each has to be mentioned next."""

    key: SessionKey
    connection: int
    epoch: int
    partitions: dict[Place, bool] = field(default_factory=dict)


class ShareContext:
    """What one share fetch asks for, all told, and which partitions its answer mentions."""

    __slots__ = ("_epoch", "_incremental", "_session", "partitions")

    def __init__(
        self, partitions: Sequence[Place], session: ShareSession | None = None, *, incremental: bool = False
    ) -> None:
        self.partitions = partitions
        self._session = session
        self._incremental = incremental
        self._epoch = session.epoch if session is not None else 0

    def included(self, answered: Iterable[tuple[Place, bool, bool]]) -> Iterator[Place]:
        """Choose what is sent of (place, has records, has an error): everything, or what is news to the client.

        A partition that had records moves to the end of the line. INVALID_SHARE_SESSION_EPOCH if the session went on
        without this request.
        """
        session = self._session
        if session is None or not self._incremental:
            yield from (place for place, _, _ in answered)
            return
        if session.epoch != self._epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        for place, has_records, has_error in answered:
            due = session.partitions.get(place)
            if due is None:
                continue
            if has_records:
                del session.partitions[place]
            session.partitions[place] = has_error
            if has_records or has_error or due:
                yield place


class ShareSessions:
    """The sessions of one node; `limit` says how many it may have."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._connections: dict[int, SessionKey] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: SessionKey) -> ShareSession | None:
        """A member's session."""
        return self._sessions.get(key)

    def context(
        self,
        key: SessionKey,
        epoch: int,
        wanted: Sequence[Place],
        forgotten: Iterable[Place],
        connection: int,
        *,
        acknowledges: bool,
    ) -> ShareContext:
        """Find out what a fetch asks for; errors of the session are raised."""
        if epoch == FINAL_EPOCH:
            self._existing(key)
            return ShareContext(())
        if epoch == INITIAL_EPOCH:
            if acknowledges:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            self.remove(key)
            if len(self._sessions) >= self._limit():
                raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
            session = ShareSession(key, connection, 1, dict.fromkeys(wanted, False))
            self._sessions[key] = session
            self._connections[connection] = key
            return ShareContext(list(session.partitions), session)
        session = self._in_epoch(key, epoch)
        for place in wanted:
            session.partitions.setdefault(place, True)
        for place in forgotten:
            session.partitions.pop(place, None)
        session.epoch = _next_epoch(epoch)
        return ShareContext(list(session.partitions), session, incremental=True)

    def acknowledge(self, key: SessionKey, epoch: int) -> None:
        """A member only acknowledges; it has to have a session, which goes on."""
        if epoch == INITIAL_EPOCH:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        if epoch == FINAL_EPOCH:
            self._existing(key)
        else:
            self._in_epoch(key, epoch).epoch = _next_epoch(epoch)

    def remove(self, key: SessionKey) -> ShareSession | None:
        """End a session; the session, if there was one."""
        return self._sessions.pop(key, None)

    def clear(self) -> None:
        """End them all."""
        self._sessions.clear()
        self._connections.clear()

    def disconnected(self, connection: int) -> tuple[ShareSession | None, str | None]:
        """A connection is gone: the session that ends with it, and the group that has no session here any more."""
        key = self._connections.pop(connection, None)
        if key is None:
            return None, None
        session = self._sessions.get(key)
        if session is not None and session.connection == connection:
            del self._sessions[key]
        else:
            session = None
        left = any(other.group_id == key.group_id for other in self._sessions)
        return session, None if left else key.group_id

    def _existing(self, key: SessionKey) -> ShareSession:
        session = self._sessions.get(key)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def _in_epoch(self, key: SessionKey, epoch: int) -> ShareSession:
        session = self._existing(key)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        return session


def _next_epoch(epoch: int) -> int:
    return 1 if epoch == LARGEST_EPOCH else epoch + 1
