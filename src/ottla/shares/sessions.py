"""Share sessions: the partitions that each member of a share group fetches from one node (Kafka's ShareSessionCache).

A session belongs to a connection and ends with it.
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


class TopicIdPartition(NamedTuple):
    """A partition by its topic's id."""

    topic_id: Uuid
    partition: int


class SessionKey(NamedTuple):
    """The group and member that a session belongs to (Kafka's ShareSessionKey)."""

    group_id: str
    member_id: str


@dataclass(slots=True, eq=False)
class ShareSession:
    """One member's session: partitions in the order of fetching, and whether the next response must include each."""

    key: SessionKey
    connection: int
    epoch: int
    partitions: dict[TopicIdPartition, bool] = field(default_factory=dict)


class ShareContext:
    """The partitions of one ShareFetch, and which of them its response includes (Kafka's ShareFetchContext)."""

    __slots__ = ("_epoch", "_incremental", "_session", "partitions")

    def __init__(
        self, partitions: Sequence[TopicIdPartition], session: ShareSession | None = None, *, incremental: bool = False
    ) -> None:
        self.partitions = partitions
        self._session = session
        self._incremental = incremental
        self._epoch = session.epoch if session is not None else 0

    def included(self, fetched: Iterable[tuple[TopicIdPartition, bool, bool]]) -> Iterator[TopicIdPartition]:
        """Return the partitions to include, given (partition, has records, has an error) of each.

        A full fetch includes all; an incremental one those with records, an error, or pending inclusion. A partition
        with records moves to the end. Raise INVALID_SHARE_SESSION_EPOCH if the session's epoch changed since.
        """
        session = self._session
        if session is None or not self._incremental:
            yield from (partition for partition, _, _ in fetched)
            return
        if session.epoch != self._epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        for partition, has_records, has_error in fetched:
            pending = session.partitions.get(partition)
            if pending is None:
                continue
            if has_records:
                del session.partitions[partition]
            session.partitions[partition] = has_error
            if has_records or has_error or pending:
                yield partition


class ShareSessions:
    """The share sessions of one node; `limit` returns group.share.max.share.sessions."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._connections: dict[int, SessionKey] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: SessionKey) -> ShareSession | None:
        """Return a member's session, if it has one."""
        return self._sessions.get(key)

    def context(
        self,
        key: SessionKey,
        epoch: int,
        added: Sequence[TopicIdPartition],
        removed: Iterable[TopicIdPartition],
        connection: int,
        *,
        acknowledges: bool,
    ) -> ShareContext:
        """Create, update or look up the session of a ShareFetch; return the partitions to fetch or raise."""
        if epoch == FINAL_EPOCH:
            self._require(key)
            return ShareContext(())
        if epoch == INITIAL_EPOCH:
            if acknowledges:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            self.remove(key)
            if len(self._sessions) >= self._limit():
                raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
            session = ShareSession(key, connection, 1, dict.fromkeys(added, False))
            self._sessions[key] = session
            self._connections[connection] = key
            return ShareContext(list(session.partitions), session)
        session = self._require_epoch(key, epoch)
        for partition in added:
            session.partitions.setdefault(partition, True)
        for partition in removed:
            session.partitions.pop(partition, None)
        session.epoch = _next_epoch(epoch)
        return ShareContext(list(session.partitions), session, incremental=True)

    def acknowledge(self, key: SessionKey, epoch: int) -> None:
        """Advance the epoch of the session of a ShareAcknowledge, or raise if there is none in that epoch."""
        if epoch == INITIAL_EPOCH:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        if epoch == FINAL_EPOCH:
            self._require(key)
        else:
            self._require_epoch(key, epoch).epoch = _next_epoch(epoch)

    def remove(self, key: SessionKey) -> ShareSession | None:
        """Remove a session and return it, if there was one."""
        return self._sessions.pop(key, None)

    def clear(self) -> None:
        """Remove all sessions."""
        self._sessions.clear()
        self._connections.clear()

    def disconnected(self, connection: int) -> tuple[ShareSession | None, str | None]:
        """Remove the session of a closed connection; return it, and its group if that has no session left here."""
        key = self._connections.pop(connection, None)
        if key is None:
            return None, None
        session = self._sessions.get(key)
        if session is not None and session.connection == connection:
            del self._sessions[key]
        else:
            session = None
        has_sessions = any(other.group_id == key.group_id for other in self._sessions)
        return session, None if has_sessions else key.group_id

    def _require(self, key: SessionKey) -> ShareSession:
        session = self._sessions.get(key)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def _require_epoch(self, key: SessionKey, epoch: int) -> ShareSession:
        session = self._require(key)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        return session


def _next_epoch(epoch: int) -> int:
    return 1 if epoch == LARGEST_EPOCH else epoch + 1
