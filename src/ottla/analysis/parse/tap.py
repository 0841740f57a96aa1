"""Parse frames that `ottla tap` captured: assignments, offsets and transactions in requests and responses.

Newer requests name topics by id; `inputs` replaces the ids by the names that Metadata responses hold. A truncated frame
is only a `request` or a `response`.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.event import CLIENT, Event, partition_name
from ottla.analysis.parse.kafka_records import assigned_partitions
from ottla.protocol.capture import FORMAT as CAPTURE
from ottla.protocol.capture import REQUEST, CapturedFrame, from_line
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.framing import decode_request, decode_response
from ottla.protocol.internal_records import as_plain
from ottla.records.batch import read_header
from ottla.records.errors import InvalidRecords

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT: Final = "tap"
_EVICTED: Final = ("FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", "ILLEGAL_GENERATION")
_OLD: Final = "v3_and_below_"


def looks_like(line: str) -> bool:
    """Return whether a line belongs to a capture."""
    return line.startswith(('{"format": "' + CAPTURE, '{"time_us":'))


def parse(line: str, base: Event) -> list[Event] | None:
    """Return the events of a frame, or None if the line belongs to no capture."""
    if not looks_like(line):
        return None
    try:
        frame = from_line(line)
    except ProtocolError:
        return None
    if frame is None:
        return [base._replace(event="log", format=FORMAT, time_ms=None, text=line[:200])]
    is_request = frame.direction == REQUEST
    here = base._replace(
        time_ms=frame.time_us // 1000,
        event="request" if is_request else "response",
        format=FORMAT,
        host="tap" if frame.node is None else f"node {frame.node}",
        client=frame.client_id,
        api=frame.api,
        request=f"{frame.server}/{frame.connection}/{frame.correlation_id}",
        text=None,
    )
    if not frame.is_whole:
        return [here]
    try:
        if is_request:
            message = as_plain(decode_request(frame.frame)[1], frame.version)
            return list(_request_events(here, frame, message))
        message = as_plain(decode_response(frame.frame, frame.api_key, frame.version)[1], frame.version)
        return list(_response_events(here, frame, message))
    except (ProtocolError, KafkaError, KeyError) as error:
        return [here._replace(error=f"does not decode: {error}")]


def _request_events(here: Event, frame: CapturedFrame, message: dict[str, Any]) -> Iterator[Event]:
    here = here._replace(
        group=message.get("group_id"),
        member=message.get("member_id") or None,
        epoch=message.get("member_epoch", message.get("generation_id", message.get("generation_id_or_member_epoch"))),
        transactional_id=message.get("transactional_id", message.get(f"{_OLD}transactional_id")) or None,
        producer_id=message.get("producer_id", message.get(f"{_OLD}producer_id")),
        producer_epoch=message.get("producer_epoch", message.get(f"{_OLD}producer_epoch")),
    )
    match frame.api:
        case "ConsumerGroupHeartbeat":
            here = here._replace(protocol="consumer")
            owned = message.get("topic_partitions")
            if here.epoch is not None and here.epoch < 0:
                yield here._replace(event="group.left")
            elif owned is not None:
                yield here._replace(event="group.assigned", partitions=_by_id(owned), text="reports what it owns")
            else:
                yield here._replace(event="group.heartbeat")
        case "JoinGroup":
            yield here._replace(event="group.join", protocol="classic")
        case "Heartbeat":
            yield here._replace(event="group.heartbeat", protocol="classic")
        case "LeaveGroup":
            members = message.get("members") or [{"member_id": here.member}]
            for member in members:
                reason = member.get("reason")
                yield here._replace(event="group.left", protocol="classic", member=member["member_id"], state=reason)
        case "EndTxn":
            yield here._replace(event="txn.end", state="commit" if message.get("committed") else "abort")
        case "InitProducerId":
            yield here._replace(event="txn.init", duration_ms=message.get("transaction_timeout_ms"))
        case "AddPartitionsToTxn":
            yield here._replace(event="txn.add", partitions=_by_name(message.get(f"{_OLD}topics") or []))
        case "AddOffsetsToTxn":
            yield here._replace(event="txn.add")
        case "Produce":
            yield _produce(here, message)
        case "Fetch" | "OffsetCommit":
            yield from _client_requests(here, frame, message)
        case _:
            yield here


def _produce(here: Event, message: dict[str, Any]) -> Event:
    """Return a Produce request with its partitions, and the producer id and epoch of its first batch."""
    partitions = []
    for topic in message.get("topic_data", []):
        for partition in topic["partition_data"]:
            partitions.append(partition_name(_topic(topic), partition["index"]))
            if here.producer_id is None and partition.get("records"):
                try:
                    header = read_header(_bytes(partition["records"]))
                except InvalidRecords:
                    continue
                if header.producer_id >= 0:
                    here = here._replace(producer_id=header.producer_id, producer_epoch=header.producer_epoch)
    return here._replace(partitions=partitions)


def _client_requests(here: Event, frame: CapturedFrame, message: dict[str, Any]) -> Iterator[Event]:
    """Yield a Fetch or OffsetCommit request as an event of its client, then one event for each partition in it."""
    if message.get("replica_id", -1) >= 0 or (message.get("replica_state") or {}).get("replica_id", -1) >= 0:
        yield here  # a follower
        return
    name, offset = ("fetch", "fetch_offset") if frame.api == "Fetch" else ("commit", "committed_offset")
    here = here._replace(event=name, side=CLIENT, client=frame.client_id or frame.client)
    topics = message.get("topics", [])
    indexes = [(_topic(topic), partition) for topic in topics for partition in topic["partitions"]]
    yield here._replace(partitions=[partition_name(topic, _index(partition)) for topic, partition in indexes])
    for topic, partition in indexes:
        yield here._replace(topic=topic, partition=_index(partition), offset=partition[offset], request=None)


def _index(partition: dict[str, Any]) -> int:
    index: int = partition["partition"] if "partition" in partition else partition["partition_index"]
    return index


def _response_events(here: Event, frame: CapturedFrame, message: dict[str, Any]) -> Iterator[Event]:
    error = _first_error(message)
    here = here._replace(error=error)
    match here.api:
        case "ConsumerGroupHeartbeat":
            here = here._replace(
                protocol="consumer", epoch=message.get("member_epoch"), member=message.get("member_id")
            )
            if error in _EVICTED:
                yield here._replace(event="group.fenced", state=error)
            elif message.get("assignment") is not None:
                assigned = _by_id(message["assignment"]["topic_partitions"])
                yield here._replace(event="group.added", partitions=assigned, text="is assigned")
            else:
                yield here
        case "Heartbeat" | "JoinGroup" | "SyncGroup" if error in _EVICTED:
            yield here._replace(event="group.fenced", protocol="classic", state=error)
        case "SyncGroup" if error is None:
            assigned = assigned_partitions(_bytes(message.get("assignment"))) or []
            yield here._replace(event="group.assigned", protocol="classic", partitions=assigned)
        case "InitProducerId":
            yield here._replace(producer_id=message.get("producer_id"), producer_epoch=message.get("producer_epoch"))
        case "Metadata":
            yield here
            for topic in message.get("topics", []):
                if topic.get("topic_id") and topic.get("name"):
                    yield here._replace(
                        event="topic", topic=topic["name"], text=str(topic["topic_id"]), state="named", error=None
                    )
        case "Fetch":
            yield here._replace(error=_error_name(message.get("error_code", 0)))
            yield from _fetch_errors(here._replace(side=CLIENT, client=frame.client_id or frame.client), message)
        case _:
            yield here


def _fetch_errors(here: Event, message: dict[str, Any]) -> Iterator[Event]:
    """Yield a failed `fetch` of the client for each partition with an error."""
    for topic in message.get("responses", []):
        for partition in topic["partitions"]:
            error = _error_name(partition.get("error_code", 0))
            if error is not None:
                index = partition["partition_index"]
                yield here._replace(event="fetch", topic=_topic(topic), partition=index, error=error, request=None)


def _bytes(text: str | None) -> bytes:
    return base64.b64decode(text or "")


def _topic(topic: dict[str, Any]) -> str:
    return str(topic.get("topic") or topic.get("name") or topic.get("topic_id"))


def _by_id(topics: list[dict[str, Any]]) -> list[str]:
    return [partition_name(str(topic["topic_id"]), index) for topic in topics for index in topic["partitions"]]


def _by_name(topics: list[dict[str, Any]]) -> list[str]:
    return [partition_name(topic["name"], index) for topic in topics for index in topic["partitions"]]


def _error_name(code: int) -> str | None:
    if code == 0:
        return None
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _first_error(message: Any) -> str | None:
    """Return the name of the first error code in a response."""
    if isinstance(message, dict):
        code = message.get("error_code")
        if isinstance(code, int) and code != 0:
            return _error_name(code)
        children = list(message.values())
    else:
        children = message
    for child in children:
        if isinstance(child, dict | list) and (error := _first_error(child)) is not None:
            return error
    return None
