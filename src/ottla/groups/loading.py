"""Loads a partition of `__consumer_offsets` into its shard when this node becomes its leader."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from ottla.cluster.coordinator_errors import UnreadableRecord, unreadable
from ottla.groups import replay
from ottla.groups.classic import membership as classic_membership
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.consumer.timers import schedule_rebalance_timeout, schedule_session_timeout
from ottla.groups.modern import MemberState
from ottla.groups.offsets import requests as offset_requests
from ottla.groups.records import decode_record
from ottla.groups.share import heartbeat as share_heartbeat
from ottla.groups.share.group import ShareGroup
from ottla.groups.streams import timers as streams_timers
from ottla.groups.streams.group import StreamsGroup, StreamsMemberState
from ottla.records.batch import NO_PRODUCER_ID, iter_batches
from ottla.records.control import ControlType, parse_control_key
from ottla.records.iterate import Record, iter_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.groups.outcome import Outcome
    from ottla.groups.shard import Group, Shard
    from ottla.records.batch import BatchHeader

log = logging.getLogger(__name__)
_COMMIT_KEYS = (b"\x00\x00", b"\x00\x01")  # versions of OffsetCommitKey

# Units of work for `pieces.py`, in microseconds.
READ_WORK = 3
REPLAY_WORK = 15


class Loading:
    """Replays a partition of `__consumer_offsets` into a shard, as Kafka's CoordinatorLoaderImpl does.

    Its methods are generators that yield the units of work they have done (`pieces.py`), because a log may be
    large. Most records of a log are offset commits that a later commit replaced: of a run of plain commits only the
    last of each key is decoded and replayed, before the next record of another kind.
    A record that cannot be replayed is skipped and reported by `mark_loaded`, which then leaves the shard unloaded.
    """

    __slots__ = ("_commits", "_last_offsets", "_shard", "_unreadable")

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._commits: dict[bytes, Record] = {}
        self._last_offsets: dict[str, int] = {}
        self._unreadable: list[UnreadableRecord] = []

    def replay(self, piece: bytes | bytearray | memoryview | UnreadableRecord) -> Iterator[int]:
        """Replay whole batches in log order, or note a part of the log that could not be read.

        An empty piece means that the log has no more records now: replay what was held back and start timers, so that
        `mark_loaded` has little left to do.
        """
        if isinstance(piece, UnreadableRecord):
            self._unreadable.append(piece)
            return
        if not piece:
            yield from self.settle_commits()
            yield from self._start_timers()
        for header in iter_batches(piece):
            yield header.size >> 10
            next_offset = header.base_offset
            try:
                for record in iter_records(piece, header):
                    next_offset = record.offset
                    yield from self._replay_record(header, record)
                    next_offset += 1
            except Exception as error:  # the batch cannot be decompressed, or its records are malformed
                self._unreadable.append(unreadable(next_offset, error))

    def _replay_record(self, header: BatchHeader, record: Record) -> Iterator[int]:
        if header.is_control:
            yield from self.settle_commits()
            kind = parse_control_key(record.key)
            if kind in (ControlType.COMMIT, ControlType.ABORT):
                self._shard.offsets.complete_transaction(header.producer_id, committed=kind is ControlType.COMMIT)
        elif header.is_transactional:
            yield from self.settle_commits()
            self._replay(record, header.producer_id)
        elif record.key is not None and record.key[:2] in _COMMIT_KEYS and record.value is not None:
            self._commits[record.key] = record
            yield READ_WORK
            return
        else:
            yield from self.settle_commits()
            self._replay(record, NO_PRODUCER_ID)
        yield REPLAY_WORK

    def settle_commits(self) -> Iterator[int]:
        """Replay the last commit of each key read so far."""
        for record in self._commits.values():
            self._replay(record, NO_PRODUCER_ID)
            yield REPLAY_WORK
        self._commits.clear()

    def _replay(self, record: Record, producer_id: int) -> None:
        try:
            decoded = decode_record(record.key, record.value)
            if decoded is None:
                log.warning(
                    "__consumer_offsets-%d: ignoring the record at offset %d, whose type is unknown",
                    self._shard.partition,
                    record.offset,
                )
                return
            replay.replay(self._shard, decoded, record.offset, producer_id)
        except Exception as error:  # as in Kafka, whatever a record does, it fails this shard and nothing else
            self._unreadable.append(unreadable(record.offset, error))
            return
        group_id = getattr(decoded.key, "group_id", None) or getattr(decoded.key, "group", None)
        if isinstance(group_id, str):
            self._last_offsets[group_id] = record.offset

    def _start_timers(self) -> Iterator[int]:
        """Start the timers of the groups replayed since the last call."""
        offsets, self._last_offsets = self._last_offsets, {}
        for group_id, offset in offsets.items():
            group = self._shard.groups.get(group_id)
            if group is None or self._unreadable:
                continue
            try:
                _start_timers(self._shard, group)
            except Exception as error:  # values that no coordinator writes, in a record that could be replayed
                self._unreadable.append(unreadable(offset, error))
            yield REPLAY_WORK * (1 + len(group.members))

    def mark_loaded(self) -> list[UnreadableRecord]:
        """Mark the shard as loaded after an empty piece; return the records that could not be loaded.

        If there are any, the shard stays unloaded and the caller drops it.
        """
        for _ in self.replay(b""):
            pass
        if self._unreadable:
            return sorted(self._unreadable)
        self._shard.loaded = True
        _schedule_expiry(self._shard)
        return []


def _start_timers(shard: Shard, group: Group) -> None:
    """Start the session and rebalance timers of a group's members."""
    if isinstance(group, ClassicGroup):
        for member in group.members.values():
            classic_membership.schedule_session_timeout(shard, group, member)
        if len(group.members) > shard.settings.coordinator().max_size:
            # Rebalance, so that members can commit before those beyond group.max.size are evicted.
            rebalance = partial(classic_membership.prepare_rebalance, shard, group)
            shard.execute(("rebalance", group.group_id), rebalance)
    elif isinstance(group, ShareGroup):
        for member_id in group.members:
            share_heartbeat.schedule_session_timeout(shard, group.group_id, member_id)
    elif isinstance(group, StreamsGroup):
        for streams_member in group.members.values():
            streams_timers.schedule_session_timeout(shard, group.group_id, streams_member.member_id)
            if streams_member.state is StreamsMemberState.UNREVOKED_TASKS:
                streams_timers.schedule_rebalance_timeout(shard, group.group_id, streams_member)
    else:
        for consumer_member in group.members.values():
            schedule_session_timeout(shard, group.group_id, consumer_member.member_id)
            if consumer_member.state is MemberState.UNREVOKED_PARTITIONS:
                schedule_rebalance_timeout(shard, group.group_id, consumer_member)


def _schedule_expiry(shard: Shard) -> None:
    def expire() -> Outcome[None]:
        _schedule_expiry(shard)
        return offset_requests.expire(shard)

    shard.after("expire", shard.settings.coordinator().offsets_retention_check_interval_ms, expire)
