"""An error for chosen partitions of a request, while its other partitions are served.

A request that changes state is split, so that the chosen partitions are not changed. Of a request that only reads, the
response is edited.
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
    from ottla.testing.control.exchange import Answer, Exchange

    Covers = Callable[[str, int | None], bool]

STATE_CHANGING_APIS = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.OFFSET_COMMIT,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.DELETE_RECORDS,
        ApiKey.OFFSET_DELETE,
    }
)
# The names that Kafka's messages use for lists of topics, lists of partitions and partition indexes.
TOPIC_FIELDS = ("topics", "topic_data", "topic_partitions", "v3_and_below_topics")
PARTITION_FIELDS = ("partitions", "partition_data", "partition_indexes")
INDEX_FIELDS = ("partition_index", "partition", "index")


def requested_partitions(exchange: Exchange) -> Iterator[tuple[str, int | None]]:
    """Return the partitions that a request names; a topic without partitions comes with index None."""
    if exchange.received.api_key == ApiKey.FETCH:
        yield from exchange.session_partitions()
    yield from _named_partitions(exchange.request, exchange)


def _named_partitions(message: Any, exchange: Exchange) -> Iterator[tuple[str, int | None]]:
    for attribute in (*TOPIC_FIELDS, "groups", "transactions", "markers"):
        for item in getattr(message, attribute, None) or ():
            if isinstance(item, str):
                yield item, None
                continue
            name = _topic_name(item, exchange)
            if name is None:
                yield from _named_partitions(item, exchange)
                continue
            indexes = list(_partition_indexes(item))
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


def _partition_indexes(topic: Any) -> Iterator[int]:
    for attribute in PARTITION_FIELDS:
        for partition in getattr(topic, attribute, None) or ():
            index = partition if isinstance(partition, int) else _partition_index(partition)
            if index is not None:
                yield index


def _partition_index(partition: Any) -> int | None:
    for attribute in INDEX_FIELDS:
        value = getattr(partition, attribute, None)
        if isinstance(value, int):
            return value
    return None


class PartitionErrors:
    """One error code for the partitions that `covers` selects."""

    def __init__(self, covers: Covers, code: ErrorCode) -> None:
        self._covers = covers
        self._code = code

    def apply(self, exchange: Exchange) -> Answer:
        """Serve a request with the error in the response for the selected partitions."""
        key = exchange.received.api_key
        if key in STATE_CHANGING_APIS:
            return self._split(exchange)
        request = exchange.request
        if key == ApiKey.FETCH:
            request = copy.copy(request)
            request.max_wait_ms = 0  # a broker does not wait for records when a partition has an error
        return exchange.serve(request, lambda response: self._edit(exchange, response))

    def _split(self, exchange: Exchange) -> Answer:
        """Serve the other partitions, and add the selected ones to the response with the error."""
        request = exchange.request
        attribute = next(name for name in TOPIC_FIELDS if getattr(request, name, None))
        served, failed = copy.copy(request), copy.copy(request)
        served_topics: list[Any] = []
        failed_topics: list[Any] = []
        for topic in getattr(request, attribute):
            name = _topic_name(topic, exchange) or ""
            field = next(candidate for candidate in PARTITION_FIELDS if hasattr(topic, candidate))
            for selected, topics in ((False, served_topics), (True, failed_topics)):
                partitions = [
                    partition
                    for partition in getattr(topic, field)
                    if self._covers(name, partition if isinstance(partition, int) else _partition_index(partition))
                    is selected
                ]
                if partitions:
                    part = copy.copy(topic)
                    setattr(part, field, partitions)
                    topics.append(part)
        setattr(served, attribute, served_topics)
        setattr(failed, attribute, failed_topics)
        errors = exchange.error_response(failed, self._code)
        if not served_topics:
            return None if errors is None else exchange.encode(errors)
        return exchange.serve(served, lambda response: _merge(response, errors))

    def _edit(self, exchange: Exchange, response: Any) -> Any:
        """Set the error in a response; a fetch session leaves out unchanged partitions, so add those."""
        reported = set(self._set_errors(response, exchange))
        if exchange.received.api_key == ApiKey.FETCH:
            for name, index in dict.fromkeys(requested_partitions(exchange)):
                if index is not None and (name, index) not in reported and self._covers(name, index):
                    response.responses.append(self._fetch_error(exchange, name, index))
        return response

    def _set_errors(self, message: Any, exchange: Exchange) -> Iterator[tuple[str, int]]:
        """Set the error in all selected partitions of a message, at any depth, and return these partitions."""
        for field in message.__schema__.fields:
            value = getattr(message, field.name)
            if not isinstance(value, list):
                continue
            for item in value:
                if not isinstance(item, Struct):
                    continue
                name = _topic_name(item, exchange)
                if name is None:
                    yield from self._set_errors(item, exchange)
                    continue
                partitions = [
                    partition
                    for attribute in (*PARTITION_FIELDS, "partition_responses")
                    for partition in getattr(item, attribute, None) or ()
                ]
                for partition in partitions:
                    index = _partition_index(partition)
                    if index is not None and self._covers(name, index):
                        partition.error_code = self._code
                        if hasattr(partition, "records"):
                            _remove_records(partition)
                        yield name, index
                if not partitions and hasattr(item, "error_code") and self._covers(name, None):
                    item.error_code = self._code

    def _fetch_error(self, exchange: Exchange, name: str, index: int) -> FetchableTopicResponse:
        requested = next((topic for topic in exchange.request.topics if _topic_name(topic, exchange) == name), None)
        response = FetchableTopicResponse(topic=name)
        topic_id = requested.topic_id if requested is not None else exchange.topic_id(name)
        if topic_id is not None:
            response.topic_id = topic_id
        response.partitions = [
            PartitionData(partition_index=index, error_code=self._code, high_watermark=-1, records=b"")
        ]
        return response


def _remove_records(partition: Any) -> None:
    """Set the records to empty, as Kafka does: librdkafka rejects a response with null records."""
    if hasattr(partition.records, "release"):
        partition.records.release()
    partition.records = b""


def _merge(response: Any, errors: Any) -> Any:
    """Append the lists of the error response to those of the response."""
    if response is None or errors is None:
        return response
    for field in response.__schema__.fields:
        value = getattr(errors, field.name)
        if isinstance(value, list):
            getattr(response, field.name).extend(value)
    return response
