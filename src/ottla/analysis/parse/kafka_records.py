"""Decode records of `__consumer_offsets` and `__transaction_state` into events.

Records only; `log_directory` reads the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.analysis.event import Event, partition_name
from ottla.protocol.errors import ProtocolError
from ottla.protocol.internal_records import TRANSACTION_STATES
from ottla.protocol.record_schemas.consumer_protocol import ConsumerProtocolAssignment
from ottla.protocol.record_schemas.group import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentTaskIds,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
)
from ottla.protocol.record_schemas.transaction import TransactionLogKey, TransactionLogValue
from ottla.protocol.record_values import (
    decode_offsets_key,
    decode_offsets_value,
    decode_transaction_key,
    decode_transaction_value,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from ottla.records.iterate import Record

FORMAT: Final = "kafka-log"
MEMBER_STATES: Final = {0: "Stable", 1: "UnrevokedPartitions", 2: "UnreleasedPartitions", 127: "Unknown"}
STREAMS_MEMBER_STATES: Final = {1: "Stable", 2: "UnrevokedTasks", 3: "UnreleasedTasks", 127: "Unknown"}


def group_events(record: Record, file: str, topic_names: Mapping[str, str]) -> Iterator[Event]:
    """Yield the events of a record of `__consumer_offsets`; `topic_names` maps topic ids to names."""
    here = Event(record.timestamp, "log", format=FORMAT, file=file, position=record.offset)
    try:
        key = decode_offsets_key(record.key or b"")
        value = None if record.value is None else decode_offsets_value(key, record.value)
    except ProtocolError as error:
        yield here._replace(event="unparsed", text=f"the record does not decode: {error}")
        return
    if isinstance(key, OffsetCommitKey):
        if isinstance(value, OffsetCommitValue):
            yield here._replace(
                event="commit",
                time_ms=value.commit_timestamp,
                group=key.group,
                topic=key.topic,
                partition=key.partition,
                offset=value.offset,
            )
    elif isinstance(key, GroupMetadataKey):
        yield from _classic(here._replace(group=key.group, protocol="classic"), value)
    elif isinstance(key, ConsumerGroupMetadataKey | StreamsGroupMetadataKey):
        epoch = value.epoch if isinstance(value, ConsumerGroupMetadataValue | StreamsGroupMetadataValue) else None
        state = "Dead" if value is None else "Epoch"
        protocol = "consumer" if isinstance(key, ConsumerGroupMetadataKey) else "streams"
        yield here._replace(event="group.state", group=key.group_id, protocol=protocol, epoch=epoch, state=state)
    elif isinstance(key, ConsumerGroupMemberMetadataKey):
        here = here._replace(group=key.group_id, protocol="consumer", member=key.member_id)
        if isinstance(value, ConsumerGroupMemberMetadataValue):
            yield here._replace(event="group.join", client=value.client_id, text="subscribes to " + _topics(value))
        else:
            yield here._replace(event="group.left")
    elif isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
        here = here._replace(event="group.assigned", group=key.group_id, protocol="consumer", member=key.member_id)
        if isinstance(value, ConsumerGroupCurrentMemberAssignmentValue):
            yield here._replace(
                epoch=value.member_epoch,
                state=MEMBER_STATES.get(value.state, str(value.state)),
                partitions=_named(value.assigned_partitions, topic_names),
                pending=_named(value.partitions_pending_revocation, topic_names),
            )
        else:
            yield here._replace(event="group.left")
    elif isinstance(key, StreamsGroupMemberMetadataKey | StreamsGroupCurrentMemberAssignmentKey):
        yield from _streams(here._replace(group=key.group_id, protocol="streams", member=key.member_id), value)


def _streams(here: Event, value: object) -> Iterator[Event]:
    """Yield the events of a streams group's member, with its active tasks as partitions of their subtopologies."""
    if isinstance(value, StreamsGroupMemberMetadataValue):
        yield here._replace(event="group.join", client=value.client_id, text=f"a thread of process {value.process_id}")
    elif isinstance(value, StreamsGroupCurrentMemberAssignmentValue):
        yield here._replace(
            event="group.assigned",
            epoch=value.member_epoch,
            state=STREAMS_MEMBER_STATES.get(value.state, str(value.state)),
            partitions=_tasks(value.active_tasks),
            pending=_tasks(value.active_tasks_pending_revocation),
        )
    else:
        yield here._replace(event="group.left")


def _tasks(tasks: Sequence[StreamsGroupCurrentMemberAssignmentTaskIds]) -> list[str]:
    return [partition_name(ids.subtopology_id, task) for ids in tasks for task in ids.partitions]


def _topics(value: ConsumerGroupMemberMetadataValue) -> str:
    return ", ".join(value.subscribed_topic_names) or value.subscribed_topic_regex or "nothing"


def _named(topics: Sequence[Any], names: Mapping[str, str]) -> list[str]:
    return [
        partition_name(names.get(str(topic.topic_id), str(topic.topic_id)), partition)
        for topic in topics
        for partition in topic.partitions
    ]


def _classic(here: Event, value: object) -> Iterator[Event]:
    if not isinstance(value, GroupMetadataValue):
        yield here._replace(event="group.state", state="Dead")
        return
    yield here._replace(
        event="group.state", epoch=value.generation, state="Stable" if value.members else "Empty", member=value.leader
    )
    for member in value.members:
        partitions = assigned_partitions(member.assignment) if value.protocol_type == "consumer" else None
        if partitions is not None:
            yield here._replace(
                event="group.assigned",
                member=member.member_id,
                client=member.client_id,
                epoch=value.generation,
                partitions=partitions,
            )


def assigned_partitions(data: bytes) -> list[str] | None:
    """Return the partitions in a classic member's assignment, or None if it is not a consumer's."""
    if not data:
        return []
    try:
        version = min(int.from_bytes(data[:2]), ConsumerProtocolAssignment.__schema__.versions[-1])
        assignment = ConsumerProtocolAssignment.decode_from(data, 2, version)[0]
    except ProtocolError:
        return None
    return [
        partition_name(topic.topic, index) for topic in assignment.assigned_partitions for index in topic.partitions
    ]


def transaction_event(record: Record, file: str) -> Event:
    """Return the event of a record of `__transaction_state`."""
    here = Event(record.timestamp, "txn.state", format=FORMAT, file=file, position=record.offset)
    try:
        key = decode_transaction_key(record.key or b"")
        value = None if record.value is None else decode_transaction_value(record.value)
    except ProtocolError as error:
        return here._replace(event="unparsed", text=f"the record does not decode: {error}")
    if not isinstance(key, TransactionLogKey) or not (value is None or isinstance(value, TransactionLogValue)):
        return here._replace(event="unparsed", text="a record of a newer kind")
    if value is None:
        return here._replace(transactional_id=key.transactional_id, state="Dead")
    status = value.transaction_status
    known = 0 <= status < len(TRANSACTION_STATES)
    return here._replace(
        time_ms=value.transaction_last_update_timestamp_ms,
        transactional_id=key.transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        state=TRANSACTION_STATES[status] if known else str(status),
        duration_ms=value.transaction_timeout_ms,
        partitions=[
            partition_name(topic.topic, index)
            for topic in value.transaction_partitions or []
            for index in topic.partition_ids
        ],
        text=f"began at {value.transaction_start_timestamp_ms}" if value.transaction_start_timestamp_ms > 0 else None,
    )
