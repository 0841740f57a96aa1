"""Hypothesis strategies for records and batches, shared by the tests of this folder."""

from __future__ import annotations

from hypothesis import strategies as st

from ottla.records.iterate import Record

blobs = st.one_of(st.none(), st.binary(max_size=40), st.binary(min_size=60, max_size=140))
headers = st.lists(st.tuples(st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=12))), max_size=3)
timestamps = st.one_of(st.just(-1), st.integers(0, 2**62))
records = st.builds(
    Record,
    offset=st.just(0),
    timestamp=timestamps,
    key=blobs,
    value=blobs,
    headers=headers.map(tuple),
)
record_lists = st.lists(records, min_size=1, max_size=12)
codecs = st.integers(0, 4)
