"""Reading a partition of `__consumer_offsets` when this node begins to lead it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.groups import replay
from ottla.groups.classic import join as classic_join
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.consumer.group import MemberState
from ottla.groups.consumer.timers import schedule_rebalance_timeout, schedule_session_timeout
from ottla.groups.offsets import requests as offset_requests
from ottla.groups.records import decode_record
from ottla.groups.share import heartbeat as share_heartbeat
from ottla.groups.share.group import ShareGroup
from ottla.groups.streams import timers as streams_timers
from ottla.groups.streams.group import StreamsGroup, StreamsMemberState
from ottla.records.batch import iter_batches
from ottla.records.control import ControlType, parse_control_key
from ottla.records.iterate import Record, iter_records

if TYPE_CHECKING:
    from ottla.groups.shard import Outcome, Shard

log = logging.getLogger(__name__)
_COMMIT_KEYS = (b"\x00\x00", b"\x00\x01")  # versions of OffsetCommitKey


class Loading:
    """A shard on its way to being of use; it may be fed in pieces, between which other work is done.

    Most records of a log are commits that a later one overtook. Of a run of plain commits only the last of each key is
    decoded and replayed; anything else is replayed in its place, after what came before it.
    """

    __slots__ = ("_commits", "_shard")

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._commits: dict[bytes, Record] = {}

    def replay(self, buffer: bytes | bytearray | memoryview) -> None:
        """Take in whole batches, in the order of the log."""
        for header in iter_batches(buffer):
            plain = not header.is_transactional and not header.is_control
            for record in iter_records(buffer, header):
                if plain and record.key is not None and record.key[:2] in _COMMIT_KEYS and record.value is not None:
                    self._commits[record.key] = record
                    continue
                self.settle()
                if header.is_control:
                    kind = parse_control_key(record.key)
                    if kind in (ControlType.COMMIT, ControlType.ABORT):
                        committed = kind is ControlType.COMMIT
                        self._shard.offsets.complete_transaction(header.producer_id, committed=committed)
                    continue
                self._replay(record, header.producer_id if header.is_transactional else -1)

    def settle(self) -> None:
        """Replay the commits that might have been overtaken: the shard is then as the log has it so far."""
        for record in self._commits.values():
            self._replay(record, -1)
        self._commits.clear()

    def _replay(self, record: Record, producer_id: int) -> None:
        decoded = decode_record(record.key, record.value)
        if decoded is None:
            log.warning(
                "partition %d: the record at offset %d has a type that is not known, it is passed over",
                self._shard.partition,
                record.offset,
            )
        else:
            replay.replay(self._shard, decoded, record.offset, producer_id)

    def finish(self) -> None:
        """All is read: from now on members have to show that they are alive."""
        self.settle()
        shard = self._shard
        shard.loaded = True
        most = shard.settings.coordinator().max_size
        for group in list(shard.groups.values()):
            if isinstance(group, ClassicGroup):
                for member in group.members.values():
                    classic_join.schedule_heartbeat(shard, group, member)
                if len(group.members) > most:
                    # They may commit once more before those that are too many are sent away.
                    classic_join.prepare_rebalance(shard, group)
                continue
            if isinstance(group, ShareGroup):
                for member_id in group.members:
                    share_heartbeat.schedule_session_timeout(shard, group.group_id, member_id)
                continue
            if isinstance(group, StreamsGroup):
                for streams_member in group.members.values():
                    streams_timers.schedule_session_timeout(shard, group.group_id, streams_member.member_id)
                    if streams_member.state is StreamsMemberState.UNREVOKED_TASKS:
                        streams_timers.schedule_rebalance_timeout(shard, group.group_id, streams_member)
                continue
            for each in group.members.values():
                schedule_session_timeout(shard, group.group_id, each.member_id)
                if each.state is MemberState.UNREVOKED_PARTITIONS:
                    schedule_rebalance_timeout(shard, group.group_id, each)
        _schedule_expiry(shard)


def _schedule_expiry(shard: Shard) -> None:
    def expire() -> Outcome[None]:
        _schedule_expiry(shard)
        return offset_requests.expire(shard)

    shard.after("expire", shard.settings.coordinator().offsets_retention_check_interval_ms, expire)
