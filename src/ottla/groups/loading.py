"""Reading a partition of `__consumer_offsets` when this node begins to lead it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.groups import classic_join, offset_requests, replay
from ottla.groups.classic import ClassicGroup
from ottla.groups.consumer import MemberState
from ottla.groups.consumer_timers import schedule_rebalance_timeout, schedule_session_timeout
from ottla.groups.records import decode_record
from ottla.records.batch import iter_batches
from ottla.records.control import ControlType, parse_control_key
from ottla.records.iterate import iter_records

if TYPE_CHECKING:
    from ottla.groups.shard import Outcome, Shard

log = logging.getLogger(__name__)


class Loading:
    """A shard on its way to being of use; it may be fed in pieces, between which other work is done."""

    __slots__ = ("_shard",)

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def replay(self, buffer: bytes | bytearray | memoryview) -> None:
        """Take in whole batches, in the order of the log."""
        shard = self._shard
        for header in iter_batches(buffer):
            for record in iter_records(buffer, header):
                if header.is_control:
                    kind = parse_control_key(record.key)
                    if kind in (ControlType.COMMIT, ControlType.ABORT):
                        shard.offsets.complete_transaction(header.producer_id, committed=kind is ControlType.COMMIT)
                    continue
                decoded = decode_record(record.key, record.value)
                if decoded is None:
                    log.warning(
                        "partition %d: the record at offset %d has a type that is not known, it is passed over",
                        shard.partition,
                        record.offset,
                    )
                else:
                    producer_id = header.producer_id if header.is_transactional else -1
                    replay.replay(shard, decoded, record.offset, producer_id)

    def finish(self) -> None:
        """All is read: from now on members have to show that they are alive."""
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
