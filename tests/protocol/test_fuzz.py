"""A bounded run of the fuzz target; tools/fuzz_codec.py runs it without a bound."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from . import fuzzing
from .strategies import ALL_MESSAGES


@pytest.mark.parametrize("block", range(10))
def test_mutated_message_decodes_or_raises_protocol_error(block: int) -> None:
    still_messages = sum(fuzzing.run_case(number) for number in range(block * 300, block * 300 + 300))
    assert 0 < still_messages < 300  # both kinds were tried


@settings(max_examples=300, deadline=None, database=None)
@given(cls=st.sampled_from(ALL_MESSAGES), pick=st.integers(0, 100), data=st.binary(max_size=200))
def test_any_bytes_decode_or_raise_protocol_error(cls: type, pick: int, data: bytes) -> None:
    versions = cls.__schema__.versions  # type: ignore[attr-defined]
    fuzzing.check(cls, versions[pick % len(versions)], data)
