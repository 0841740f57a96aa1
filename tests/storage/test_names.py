from __future__ import annotations

import pytest

from ottla.storage import names
from ottla.storage.names import NumberedFile, PartitionDir, TopicPartition


def test_file_names_have_twenty_digits() -> None:
    assert names.offset_name(0, ".log") == "00000000000000000000.log"
    assert names.offset_name(2**63 - 1, ".snapshot") == "09223372036854775807.snapshot"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("00000000000000000012.log", NumberedFile(12, ".log", "")),
        ("00000000000000000012.txnindex.deleted", NumberedFile(12, ".txnindex", ".deleted")),
        ("00000000000000000012.timeindex.swap", NumberedFile(12, ".timeindex", ".swap")),
        ("00000000000000000012.index.cleaned", NumberedFile(12, ".index", ".cleaned")),
        ("00000000000000000012.log.tmp", None),
        ("leader-epoch-checkpoint", None),
        ("12.log.deleted.deleted", None),
        (".log", None),
        ("-1.log", None),
        ("00000000000000000012-0000000003.checkpoint", None),
    ],
)
def test_file_name_is_parsed(name: str, expected: NumberedFile | None) -> None:
    assert names.parse_numbered(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", PartitionDir(TopicPartition("orders", 0), "")),
        ("a-b.c_d-17", PartitionDir(TopicPartition("a-b.c_d", 17), "")),
        ("orders-0.0123abc-delete", PartitionDir(TopicPartition("orders", 0), "-delete")),
        ("or-ders-3.0123abc-future", PartitionDir(TopicPartition("or-ders", 3), "-future")),
        ("orders-0.0123abc-stray", PartitionDir(TopicPartition("orders", 0), "-stray")),
        ("orders-delete", None),
        ("orders", None),
        ("lost+found", None),
        ("-1", None),
        ("remote-log-index-cache", None),
    ],
)
def test_folder_name_is_parsed(name: str, expected: PartitionDir | None) -> None:
    assert names.parse_partition_dir(name) == expected


def test_long_deleted_topic_name_is_truncated() -> None:
    partition = TopicPartition("t" * 249, 12)
    name = names.marked_dir_name(partition, "0" * 32, names.DELETE_DIR_SUFFIX)
    assert len(name) == 255
    assert name.endswith("-12." + "0" * 32 + "-delete")
    assert names.parse_partition_dir(name) is not None
