"""Names the schemas of a registry that produced records were written with, for the event log."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ottla.protocol.errors import KafkaError
from ottla.records.batch import iter_batches
from ottla.records.iterate import iter_records
from ottla.schemas.framing import KEY_HEADER, VALUE_HEADER, schema_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMAS_TOPIC: Final = "_schemas"
MAX_RECORDS: Final = 100
"""Records of a batch that are looked at. The others usually have the same schema."""
MAX_BYTES: Final = 1024 * 1024
"""Decompressed size of a batch that is looked at: this runs on the broker's event loop."""


def produced_schemas(request: Any) -> list[str]:
    """Return the ids (or guids) of the schemas in a Produce request, each once, in order.

    A key or value counts if it has Confluent's framing: a header, or a magic byte and an id.
    """
    names: dict[str, None] = {}
    for topic in request.topic_data:
        if topic.name == SCHEMAS_TOPIC:
            continue
        for partition in topic.partition_data:
            if partition.records:
                for name in _schemas(partition.records):
                    names[name] = None
    return list(names)


def _schemas(records: Any) -> Iterator[str]:
    try:
        for batch in iter_batches(records):
            if batch.size > MAX_BYTES:
                continue
            for record in islice(iter_records(records, batch, MAX_BYTES), MAX_RECORDS):
                headers = dict(record.headers) if record.headers else {}
                for data, header in (
                    (record.key, headers.get(KEY_HEADER)),
                    (record.value, headers.get(VALUE_HEADER)),
                ):
                    schema = schema_of(data, header)
                    if schema is not None:
                        yield str(schema)
    except KafkaError:
        return  # the handler reports what is wrong with the batch
