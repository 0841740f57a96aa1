from __future__ import annotations

import pytest

from ottla.cluster.metadata.meta_properties import (
    MetaProperties,
    MetaPropertiesError,
    format_meta_properties,
    parse_meta_properties,
)
from ottla.protocol.schema import Uuid

# Written by Apache Kafka 4.3.1 on Java 17.
KAFKAS = (
    b"#\n#Sun Nov 15 08:19:12 UTC 2026\nnode.id=1\ndirectory.id=kQh4ZxuSSbOBZLqFGgwEZA\nversion=1\n"
    b"cluster.id=RYHE5p1OTKutHMSpe2negA\n"
)
META = MetaProperties("RYHE5p1OTKutHMSpe2negA", 1, Uuid.parse("kQh4ZxuSSbOBZLqFGgwEZA"))


def test_kafka_file_round_trip_keeps_bytes() -> None:
    assert parse_meta_properties(KAFKAS) == META
    assert format_meta_properties(META, 1_794_730_752_000) == KAFKAS


def test_version_0_is_read() -> None:
    assert parse_meta_properties(b"version=0\nbroker.id=5\ncluster.id=c\n") == MetaProperties("c", 5, None, 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "version is missing"),
        (b"version=2", "version 2 is not known"),
        (b"version=1\ncluster.id=x", "node.id is missing"),
        (b"version=1\nnode.id=1", "cluster.id is missing"),
        (b"version=1\nnode.id=one\ncluster.id=x", "node.id is 'one', not a number"),
        (b"version=1\nnode.id=1\ncluster.id=x\ndirectory.id=short", "directory.id: not a Uuid"),
        (b"version=1\nnode.id=1\ncluster.id=x\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAQ", "is reserved"),
    ],
)
def test_unusable_file_error_names_problem(data: bytes, message: str) -> None:
    with pytest.raises(MetaPropertiesError, match=message):
        parse_meta_properties(data)
