"""Every message and version that kio has: equal bytes from both, and equal values from those bytes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .kio_bridge import all_fields, for_kio, is_nullable, kio_decode, kio_encode, pairs, to_kio, value_to_kio

if TYPE_CHECKING:
    from ottla.protocol.schema import Message

PAIRS = list(pairs())


def test_kio_covers_most_messages() -> None:
    assert len(PAIRS) > 150
    assert sum(len(versions) for _, versions in PAIRS) > 550


@pytest.mark.parametrize(("cls", "versions"), PAIRS, ids=[cls.__name__ for cls, _ in PAIRS])
@settings(
    max_examples=15,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
@given(data=st.data())
def test_bytes_and_values_equal_kios(cls: type[Message], versions: dict[int, type], data: st.DataObject) -> None:
    for version, entity in versions.items():
        message = data.draw(for_kio(cls, entity, version), label=f"v{version}")
        theirs = to_kio(message, entity, version)
        expected = kio_encode(theirs)
        assert message.encode(version) == expected
        assert cls.decode(expected, version) == message
        assert cls.decode(memoryview(expected), version) == message
        assert kio_decode(entity, expected) == theirs


@pytest.mark.parametrize(("cls", "versions"), PAIRS, ids=[cls.__name__ for cls, _ in PAIRS])
def test_nulls_and_defaults_equal_kios(cls: type[Message], versions: dict[int, type]) -> None:
    for version, entity in versions.items():
        for path, field, theirs in all_fields(cls, entity, version):
            kind = theirs.metadata.get("kafka_type", "")
            if kind not in ("uuid", "datetime_i64"):  # kio has None for zero and for -1 there
                assert (version in field.nullable) == is_nullable(theirs.type), f"{path} v{version}"
            if theirs.default is not dataclasses.MISSING and kind != "datetime_i64":
                default = value_to_kio(field.new_default(), field, theirs, version)
                assert default == theirs.default, f"{path} v{version}"
