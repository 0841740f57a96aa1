from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.uuids import Uuid
from ottla.storage import checkpoints
from ottla.storage.checkpoints import CorruptCheckpointError
from ottla.storage.names import TopicPartition

OFFSETS = st.dictionaries(
    st.builds(TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,30}", fullmatch=True), st.integers(0, 2**31 - 1)),
    st.integers(0, 2**63 - 1),
)


def test_offset_checkpoint_has_version_count_and_lines() -> None:
    offsets = {TopicPartition("a", 0): 12, TopicPartition("b.c-d", 3): 0}
    data = b"0\n2\na 0 12\nb.c-d 3 0\n"
    assert checkpoints.encode_offsets(offsets) == data
    assert checkpoints.decode_offsets(data) == offsets
    assert checkpoints.encode_offsets({}) == b"0\n0\n"


@given(OFFSETS)
def test_offset_checkpoint_round_trips(offsets: dict[TopicPartition, int]) -> None:
    assert checkpoints.decode_offsets(checkpoints.encode_offsets(offsets)) == offsets


@given(OFFSETS, st.data())
def test_torn_offset_checkpoint_is_refused_or_complete(offsets: dict[TopicPartition, int], data: st.DataObject) -> None:
    encoded = checkpoints.encode_offsets(offsets)
    cut = data.draw(st.integers(0, len(encoded)))
    try:
        decoded = checkpoints.decode_offsets(encoded[:cut])
    except CorruptCheckpointError:
        return
    assert set(decoded) <= set(offsets)


@pytest.mark.parametrize(
    "data",
    [b"1\n0\n", b"0\n2\na 0 1\n", b"0\n1\na 0\n", b"0\n1\na 0 x\n", b"x", b"0\n-\n", b"\xff\n", b"0\n1\na b 1\n"],
)
def test_invalid_offset_checkpoint_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        checkpoints.decode_offsets(data)


def test_empty_checkpoint_has_no_entries() -> None:
    assert checkpoints.decode_offsets(b"") == {}
    assert checkpoints.decode_offsets(b"0\n") == {}


def test_leader_epoch_checkpoint_round_trips() -> None:
    data = b"0\n2\n0 0\n3 120\n"
    assert checkpoints.encode_epochs([(0, 0), (3, 120)]) == data
    assert checkpoints.decode_epochs(data) == [(0, 0), (3, 120)]
    with pytest.raises(CorruptCheckpointError):
        checkpoints.decode_epochs(b"0\n1\n3\n")


def test_partition_metadata_round_trips() -> None:
    topic_id = Uuid(bytes(range(16)))
    data = b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert checkpoints.encode_partition_metadata(topic_id) == data
    for variant in (data, data + b"\n", data + b"==", data + b"==\n", data.replace(b"\n", b"\r\n")):
        assert checkpoints.decode_partition_metadata(variant) == topic_id


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"version: 0",
        b"version: 0\ntopic_id: ",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        b"version: x\ntopic_id: AAECAwQFBgcICQoLDA0ODw",
        b"version: 0\ntopic_id: AAECAwQFBgc",
        b"\xff\xff\n",
    ],
)
def test_invalid_partition_metadata_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        checkpoints.decode_partition_metadata(data)


def test_clean_shutdown_file_round_trip() -> None:
    assert checkpoints.encode_clean_shutdown(118) == b'{"version":0,"brokerEpoch":118}'
    assert checkpoints.decode_clean_shutdown(b'{"version":0,"brokerEpoch":118,"more":1}') == 118
    for other in (b"", b"{", b"[]", b'{"brokerEpoch":"x"}', b'{"brokerEpoch":true}', b"\xff"):
        assert checkpoints.decode_clean_shutdown(other) is None
