"""An error for chosen partitions of a request, while the rest of it is served.

A request that changes something is split, so that what fails has no effect. Of one that only asks, the answer is
changed.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from ottla.protocol.api_table import ApiKey
from ottla.protocol.messages.k01_fetch import FetchableTopicResponse, PartitionData
from ottla.protocol.schema import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ottla.protocol.error_codes import ErrorCode
    from ottla.testing.control.rules import Answer, Exchange

    Covers = Callable[[str, int | None], bool]

CHANGING = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.OFFSET_COMMIT,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.DELETE_RECORDS,
        ApiKey.OFFSET_DELETE,
    }
)
TOPICS = ("topics", "topic_data", "topic_partitions", "v3_and_below_topics")
PARTITIONS = ("partitions", "partition_data", "partition_indexes")
INDEXES = ("partition_index", "partition", "index")


def partitions_of(exchange: Exchange) -> Iterator[tuple[str, int | None]]:
    """The partitions that a request is about; a topic that is named as a whole comes with None."""
    if exchange.seen.api_key == ApiKey.FETCH:
        yield from exchange.fetched()
    yield from _named(exchange.request, exchange)


def _named(message: Any, exchange: Exchange) -> Iterator[tuple[str, int | None]]:
    for attribute in (*TOPICS, "groups", "transactions", "markers"):
        for each in getattr(message, attribute, None) or ():
            if isinstance(each, str):
                yield each, None
                continue
            name = _topic_name(each, exchange)
            if name is None:
                yield from _named(each, exchange)
                continue
            indexes = list(_indexes(each))
            if not indexes:
                yield name, None
            for index in indexes:
                yield name, index


def _topic_name(topic: Any, exchange: Exchange) -> str | None:
    name = getattr(topic, "name", None) or getattr(topic, "topic", None)
    if isinstance(name, str) and name:
        return name
    topic_id = getattr(topic, "topic_id", None)
    return None if topic_id is None else exchange.topic_name(topic_id)


def _indexes(topic: Any) -> Iterator[int]:
    for attribute in PARTITIONS:
        for each in getattr(topic, attribute, None) or ():
            index = each if isinstance(each, int) else _index(each)
            if index is not None:
                yield index


def _index(partition: Any) -> int | None:
    for attribute in INDEXES:
        value = getattr(partition, attribute, None)
        if isinstance(value, int):
            return value
    return None


class PartitionErrors:
    """One error code for some partitions."""

    def __init__(self, covers: Covers, code: ErrorCode) -> None:
        self._covers = covers
        self._code = code

    def apply(self, exchange: Exchange) -> Answer:
        """Answer a request accordingly."""
        key = exchange.seen.api_key
        if key in CHANGING:
            return self._split(exchange)
        request = exchange.request
        if key == ApiKey.FETCH:
            request = copy.copy(request)
            request.max_wait_ms = 0  # an error is told at once
        return exchange.serve(request, lambda response: self._spoil(exchange, response))

    def _split(self, exchange: Exchange) -> Answer:
        request = exchange.request
        attribute = next(name for name in TOPICS if getattr(request, name, None))
        rest, failing = copy.copy(request), copy.copy(request)
        kept: list[Any] = []
        taken: list[Any] = []
        for topic in getattr(request, attribute):
            name = _topic_name(topic, exchange) or ""
            inner = next(each for each in PARTITIONS if hasattr(topic, each))
            partitions = getattr(topic, inner)
            for chosen, into in ((False, kept), (True, taken)):
                some = [
                    each
                    for each in partitions
                    if self._covers(name, each if isinstance(each, int) else _index(each)) is chosen
                ]
                if some:
                    part = copy.copy(topic)
                    setattr(part, inner, some)
                    into.append(part)
        setattr(rest, attribute, kept)
        setattr(failing, attribute, taken)
        refused = exchange.refusal(failing, self._code)
        if not kept:
            return None if refused is None else exchange.encode(refused)
        return exchange.serve(rest, lambda response: _merged(response, refused))

    def _spoil(self, exchange: Exchange, response: Any) -> Any:
        told = set(self._mark(response, exchange))
        if exchange.seen.api_key == ApiKey.FETCH:
            for name, index in dict.fromkeys(partitions_of(exchange)):
                if index is not None and (name, index) not in told and self._covers(name, index):
                    response.responses.append(self._missing(exchange, name, index))
        return response

    def _mark(self, message: Any, exchange: Exchange) -> Iterator[tuple[str, int]]:
        """Put the error into all chosen partitions of a response, wherever they are in it."""
        for field in message.__schema__.fields:
            value = getattr(message, field.name)
            if not isinstance(value, list):
                continue
            for each in value:
                if not isinstance(each, Struct):
                    continue
                name = _topic_name(each, exchange)
                if name is None:
                    yield from self._mark(each, exchange)
                    continue
                partitions = [
                    part for inner in (*PARTITIONS, "partition_responses") for part in getattr(each, inner, None) or ()
                ]
                for part in partitions:
                    index = _index(part)
                    if index is not None and self._covers(name, index):
                        part.error_code = self._code
                        if hasattr(part, "records"):
                            _drop_records(part)
                        yield name, index
                if not partitions and hasattr(each, "error_code") and self._covers(name, None):
                    each.error_code = self._code

    def _missing(self, exchange: Exchange, name: str, index: int) -> FetchableTopicResponse:
        asked = next((each for each in exchange.request.topics if _topic_name(each, exchange) == name), None)
        topic = FetchableTopicResponse(topic=name)
        topic_id = asked.topic_id if asked is not None else exchange.topic_id(name)
        if topic_id is not None:
            topic.topic_id = topic_id
        topic.partitions = [PartitionData(partition_index=index, error_code=self._code, high_watermark=-1, records=b"")]
        return topic


def _drop_records(partition: Any) -> None:
    """Leave no records in an answer: none as Kafka writes it (librdkafka takes null for a broken answer)."""
    if hasattr(partition.records, "release"):
        partition.records.release()
    partition.records = b""


def _merged(response: Any, refused: Any) -> Any:
    if response is None or refused is None:
        return response
    for field in response.__schema__.fields:
        value = getattr(refused, field.name)
        if isinstance(value, list):
            getattr(response, field.name).extend(value)
    return response
