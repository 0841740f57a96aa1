"""Frames that `ottla tap` captured as events: what members say that they own and are given, offsets, transactions.

Topics of newer requests are ids, which is how they are named here. A frame that was cut short is a request or a
response and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.event import CLIENT, Event, partition_name
from ottla.analysis.parse.kafka_records import assigned_partitions
from ottla.protocol.capture import FORMAT as CAPTURE
from ottla.protocol.capture import REQUEST, CapturedFrame, from_line
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.framing import decode_request, decode_response
from ottla.protocol.internal_records import as_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT: Final = "tap"
_PUT_OUT: Final = ("FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", "ILLEGAL_GENERATION")
_PLAIN: Final = {"AddPartitionsToTxn": "txn.add", "AddOffsetsToTxn": "txn.add", "InitProducerId": "txn.init"}


def looks_like(line: str) -> bool:
    """Whether this is a line of a capture."""
    return line.startswith(('{"format": "' + CAPTURE, '{"time_us":'))


def parse(line: str, base: Event) -> list[Event] | None:
    """The events of a frame; None for what is no line of a capture."""
    if not looks_like(line):
        return None
    try:
        found = from_line(line)
    except ProtocolError:
        return None
    if found is None:
        return [base._replace(event="log", format=FORMAT, time_ms=None, text=line[:200])]
    asks = found.direction == REQUEST
    here = base._replace(
        time_ms=found.time_us // 1000,
        event="request" if asks else "response",
        format=FORMAT,
        host="tap" if found.node is None else f"node {found.node}",
        client=found.client_id,
        api=found.api,
        request=f"{found.server}/{found.connection}/{found.correlation_id}",
        text=None,
    )
    if not found.is_whole:
        return [here]
    try:
        if asks:
            message = as_plain(decode_request(found.frame)[1], found.version)
            return list(_asked(here, found, message))
        message = as_plain(decode_response(found.frame, found.api_key, found.version)[1], found.version)
        return list(_answered(here, message))
    except (ProtocolError, KafkaError, KeyError) as error:
        return [here._replace(error=f"does not decode: {error}")]


def _asked(here: Event, found: CapturedFrame, message: dict[str, Any]) -> Iterator[Event]:
    here = here._replace(
        group=message.get("group_id"),
        member=message.get("member_id") or None,
        epoch=message.get("member_epoch", message.get("generation_id", message.get("generation_id_or_member_epoch"))),
        transactional_id=message.get("transactional_id", message.get("v3_and_below_transactional_id")) or None,
        producer_id=message.get("producer_id"),
        producer_epoch=message.get("producer_epoch"),
    )
    client = here._replace(side=CLIENT, host=found.client_id or found.client)
    match found.api:
        case "ConsumerGroupHeartbeat":
            here = here._replace(protocol="consumer")
            owned = message.get("topic_partitions")
            if here.epoch is not None and here.epoch < 0:
                yield here._replace(event="group.left")
            elif owned is not None:
                yield here._replace(event="group.assigned", partitions=_named(owned), text="says what it owns")
            else:
                yield here._replace(event="group.heartbeat")
        case "JoinGroup":
            yield here._replace(event="group.join", protocol="classic")
        case "Heartbeat":
            yield here._replace(event="group.heartbeat", protocol="classic")
        case "LeaveGroup":
            members = message.get("members") or [{"member_id": here.member}]
            for member in members:
                yield here._replace(event="group.left", protocol="classic", member=member["member_id"])
        case "EndTxn":
            yield here._replace(event="txn.end", state="commit" if message.get("committed") else "abort")
        case "Fetch" | "OffsetCommit":
            name, offset = ("fetch", "fetch_offset") if found.api == "Fetch" else ("commit", "committed_offset")
            yield here
            for topic in message.get("topics", []):
                for each in topic["partitions"]:
                    index = each.get("partition", each.get("partition_index"))
                    yield client._replace(
                        event=name, topic=_topic(topic), partition=index, offset=each[offset], request=None
                    )
        case api if api in _PLAIN:
            yield here._replace(event=_PLAIN[api])
        case _:
            yield here


def _answered(here: Event, message: dict[str, Any]) -> Iterator[Event]:
    error = _error(message)
    here = here._replace(error=error)
    match here.api:
        case "ConsumerGroupHeartbeat":
            here = here._replace(
                protocol="consumer", epoch=message.get("member_epoch"), member=message.get("member_id")
            )
            if error in _PUT_OUT:
                yield here._replace(event="group.fenced", state=error)
            elif message.get("assignment") is not None:
                given = _named(message["assignment"]["topic_partitions"])
                yield here._replace(event="group.added", partitions=given, text="is given")
            else:
                yield here
        case "SyncGroup" if error is None:
            mine = assigned_partitions(_bytes(message.get("assignment")))
            yield here._replace(event="group.assigned", protocol="classic", partitions=mine or [])
        case "InitProducerId":
            yield here._replace(
                producer_id=message.get("producer_id"), producer_epoch=message.get("producer_epoch"), event="response"
            )
        case _:
            yield here


def _bytes(text: str | None) -> bytes:
    import base64

    return base64.b64decode(text or "")


def _topic(topic: dict[str, Any]) -> str:
    return str(topic.get("topic") or topic.get("name") or topic.get("topic_id"))


def _named(topics: list[dict[str, Any]]) -> list[str]:
    return [partition_name(str(each["topic_id"]), index) for each in topics for index in each["partitions"]]


def _error(message: Any) -> str | None:
    """The first error in a response."""
    if isinstance(message, dict):
        code = message.get("error_code")
        if isinstance(code, int) and code != 0:
            try:
                return ErrorCode(code).name
            except ValueError:
                return str(code)
        for value in message.values():
            if isinstance(value, dict | list) and (found := _error(value)) is not None:
                return found
    elif isinstance(message, list):
        for value in message:
            if (found := _error(value)) is not None:
                return found
    return None
