"""Writes requests and responses to the event log: client, API, duration, errors."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ottla.protocol.error_codes import ErrorCode
from ottla.server.produced_schemas import SCHEMAS_TOPIC, produced_schemas

if TYPE_CHECKING:
    from ottla.broker.broker import Broker
    from ottla.broker.session import Call
    from ottla.events import NodeEvents
    from ottla.protocol.schema import Struct
    from ottla.world.clock import Clock

PRODUCE = 0
# Request fields that identify the subject of a request, by their name in the event log.
_SUBJECT_FIELDS = {
    "group": ("group_id",),
    "member": ("member_id",),
    "instance": ("group_instance_id", "instance_id"),
    "epoch": ("generation_id", "generation_id_or_member_epoch", "member_epoch"),
    "transactional_id": ("transactional_id", "v3_and_below_transactional_id"),
    "producer_id": ("producer_id", "v3_and_below_producer_id"),
    "producer_epoch": ("producer_epoch", "v3_and_below_producer_epoch"),
    "committed": ("committed",),
}
_TOPICS = ("topics", "v3_and_below_topics", "topic_data", "topic_partitions", "responses")
_PARTITIONS = ("partitions", "partition_data", "partition_indexes")
_INDEXES = ("partition_index", "partition", "index")
_OFFSETS = ("fetch_offset", "committed_offset")


class RequestEvents:
    """Writes one node's requests and responses to the event log."""

    def __init__(self, broker: Broker, events: NodeEvents, clock: Clock) -> None:
        self._broker = broker
        self._events = events
        self._clock = clock

    def request(self, call: Call, name: str, request: Any, size: int) -> float:
        """Write a request; return the time from which its duration is measured."""
        self._events.emit(
            "request",
            connection=call.session.id,
            api=name,
            version=call.version,
            correlation_id=call.correlation_id,
            client_id=call.client_id,
            bytes=size,
            **self._subject(request),
            **self._schemas(call, request),
        )
        return self._clock.monotonic()

    def response(self, call: Call, name: str, response: Any, size: int, started: float) -> None:
        """Write a response."""
        errors = error_names(response)
        error_fields = {"errors": errors} if errors else {}
        self._events.emit(
            "response",
            connection=call.session.id,
            api=name,
            version=call.version,
            correlation_id=call.correlation_id,
            client_id=call.client_id,
            bytes=size,
            ms=round((self._clock.monotonic() - started) * 1000, 3),
            **error_fields,
        )

    def _schemas(self, call: Call, request: Any) -> dict[str, Any]:
        """Return the schemas of produced records, if a registry keeps its state in this cluster."""
        if call.api_key != PRODUCE or SCHEMAS_TOPIC not in self._broker.runtime.image.topic_ids:
            return {}
        names = produced_schemas(request)
        return {"schemas": names} if names else {}

    def _subject(self, request: Any) -> dict[str, Any]:
        subject: dict[str, Any] = {}
        for name, fields in _subject_fields(request.__class__):
            value = _first(request, fields)
            if value is not None and value not in ("", -1):
                subject[name] = value
        partitions: dict[str, list[int]] = {}
        offsets = []
        for topic in _first(request, _TOPICS) or ():
            named = self._topic(topic)
            if named is None:
                continue
            indexes = partitions.setdefault(named, [])
            for partition in _first(topic, _PARTITIONS) or ():
                index = partition if isinstance(partition, int) else _first(partition, _INDEXES)
                if index is None:
                    continue
                indexes.append(index)
                offset = None if isinstance(partition, int) else _first(partition, _OFFSETS)
                if offset is not None:
                    offsets.append({"topic": named, "partition": index, "offset": offset})
        if partitions:
            subject["partitions"] = partitions
        if offsets:
            subject["offsets"] = offsets
        return subject

    def _topic(self, topic: Any) -> str | None:
        name = getattr(topic, "name", None) or getattr(topic, "topic", None)
        if name:
            return str(name)
        topic_id = getattr(topic, "topic_id", None)
        known = None if topic_id is None else self._broker.runtime.image.topics.get(topic_id)
        return None if known is None else known.name


# Fields are looked up once per class, because this runs for every request and response.


@cache
def _subject_fields(cls: type[Struct]) -> list[tuple[str, tuple[str, ...]]]:
    return [(name, present) for name, fields in _SUBJECT_FIELDS.items() if (present := _present(cls, fields))]


@cache
def _present(cls: type[Struct], names: tuple[str, ...]) -> tuple[str, ...]:
    known = {field.name for field in cls.__schema__.fields}
    return tuple(name for name in names if name in known)


@cache
def _with_errors(cls: type[Struct]) -> tuple[str, ...]:
    """Return the fields that are an error code or may contain one, in order."""
    return tuple(
        field.name
        for field in cls.__schema__.fields
        if field.name == "error_code" or (field.struct is not None and _with_errors(field.struct))
    )


def _first(message: Struct, names: tuple[str, ...]) -> Any:
    for name in _present(type(message), names):
        value = getattr(message, name)
        if value is not None:
            return value
    return None


def error_names(message: Struct) -> list[str]:
    """Return the names of all error codes in a message, each once, in order."""
    names: dict[str, None] = {}
    _collect(message, names)
    return list(names)


def _collect(message: Struct, names: dict[str, None]) -> None:
    for name in _with_errors(type(message)):
        value = getattr(message, name)
        if not value:
            continue
        if name == "error_code":
            names[ErrorCode(value).name] = None
        else:
            for item in value if isinstance(value, list) else (value,):
                _collect(item, names)
