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
    from ottla.groups.outcome import Outcome
    from ottla.groups.shard import Group, Shard
    from ottla.records.batch import BatchHeader

log = logging.getLogger(__name__)
_COMMIT_KEYS = (b"\x00\x00", b"\x00\x01")  # versions of OffsetCommitKey


class Loading:
    """Replays a partition of `__consumer_offsets` into a shard, as Kafka's CoordinatorLoaderImpl does.

    The log may be passed in pieces. Most records of a log are offset commits that a later commit replaced: of a run of
    plain commits only the last of each key is decoded and replayed, before the next record of another kind.
    A record that cannot be replayed is skipped and reported by `mark_loaded`, which then leaves the shard unloaded.
    """

    __slots__ = ("_commits", "_last_offsets", "_shard", "_unreadable")

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._commits: dict[bytes, Record] = {}
        self._last_offsets: dict[str, int] = {}
        self._unreadable: list[UnreadableRecord] = []

    def replay(self, piece: bytes | bytearray | memoryview | UnreadableRecord) -> None:
        """Replay whole batches in log order, or note a part of the log that could not be read."""
        if isinstance(piece, UnreadableRecord):
            self._unreadable.append(piece)
            return
        for header in iter_batches(piece):
            next_offset = header.base_offset
            try:
                for record in iter_records(piece, header):
                    next_offset = record.offset
                    self._replay_record(header, record)
                    next_offset += 1
            except Exception as error:  # the batch cannot be decompressed, or its records are malformed
                self._unreadable.append(unreadable(next_offset, error))

    def _replay_record(self, header: BatchHeader, record: Record) -> None:
        if header.is_control:
            self.settle_commits()
            kind = parse_control_key(record.key)
            if kind in (ControlType.COMMIT, ControlType.ABORT):
                self._shard.offsets.complete_transaction(header.producer_id, committed=kind is ControlType.COMMIT)
        elif header.is_transactional:
            self.settle_commits()
            self._replay(record, header.producer_id)
        elif record.key is not None and record.key[:2] in _COMMIT_KEYS and record.value is not None:
            self._commits[record.key] = record
        else:
            self.settle_commits()
            self._replay(record, NO_PRODUCER_ID)

    def settle_commits(self) -> None:
        """Replay the last commit of each key read so far."""
        for record in self._commits.values():
            self._replay(record, NO_PRODUCER_ID)
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

    def mark_loaded(self) -> list[UnreadableRecord]:
        """Mark the shard as loaded and start its members' timers; return the records that could not be loaded.

        If there are any, the shard stays unloaded and the caller drops it.
        """
        self.settle_commits()
        shard = self._shard
        for group in list(shard.groups.values()):
            if self._unreadable:
                break
            try:
                _start_timers(shard, group)
            except Exception as error:  # values that no coordinator writes, in a record that could be replayed
                self._unreadable.append(unreadable(self._last_offsets.get(group.group_id, -1), error))
        if self._unreadable:
            return sorted(self._unreadable)
        shard.loaded = True
        _schedule_expiry(shard)
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
