"""Replacement of an empty consumer or streams group by a classic group when a classic member joins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.groups.classic.join import join
from ottla.groups.classic.membership import join_error
from ottla.groups.outcome import Outcome
from ottla.groups.streams import replay as streams_replay
from ottla.groups.streams.group import StreamsGroup
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.groups.consumer.group import ConsumerGroup
    from ottla.groups.environment import RequestContext
    from ottla.groups.shard import Shard
    from ottla.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupResponse


def join_replacing(
    shard: Shard, context: RequestContext, request: JoinGroupRequest, empty: ConsumerGroup | StreamsGroup
) -> Outcome[JoinGroupResponse]:
    """Delete an empty group and join a classic group of the same id; restore it if the records cannot be written."""
    if request.member_id:
        return Outcome(join_error(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
    del shard.groups[request.group_id]
    outcome = join(shard, context, request, before=empty.tombstones())
    stored = outcome.on_durable

    def keep_or_restore(code: ErrorCode) -> None:
        if code is not ErrorCode.NONE:
            shard.groups[request.group_id] = empty
        elif isinstance(empty, StreamsGroup):
            streams_replay.drop_dependents(shard, empty)
        if stored is not None:
            stored(code)

    return replace(outcome, on_durable=keep_or_restore)
