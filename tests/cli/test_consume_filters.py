"""`ottla consume` with filters and with a group's offsets; `ottla produce --lines`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ottla.client.filters import expression_filter, grep_filter, key_filter
from ottla.client.formats import Form
from ottla.client.reading import Read
from ottla.records.batch import read_header
from ottla.records.builder import build_batch
from ottla.records.iterate import Record

from .live import run

if TYPE_CHECKING:
    from pathlib import Path

    from ottla.testing import Cluster

VALUE = json.dumps({"amount": 12, "tags": ["a", "b"], "from": {"city": "Vienna"}}).encode()
RECORD = Record(7, 1_700_000_000_000, b"k1", VALUE, (("source", b"web"),))
READ = Read("orders", 3, RECORD, read_header(build_batch([RECORD])))


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        ("value.amount > 10", True),
        ("value.amount > 12", False),
        ("value.amount % 5 == 2 and partition == 3", True),
        ("value['from'].city == 'Vienna'", True),
        ("value.tags[1] == 'b'", True),
        ("'a' in value.tags and 'c' not in value.tags", True),
        ("key == 'k1' and headers.source == 'web'", True),
        ("offset >= 7 and timestamp < 1700000000001", True),
        ("not value.missing", True),
        ("value.missing == null", True),
        ("value.missing > 1", False),
        ("value.missing > 1 or value.amount == 12", True),
        ("value.amount > 'text'", False),
        ("value.amount / 0 == 1", False),
        ("-value.amount == -12", True),
    ],
)
def test_expression_selects(expression: str, selected: bool) -> None:
    assert expression_filter(expression)(READ) is selected


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("value.amount >", "invalid syntax"),
        ("amount > 1", "no field amount; use key, value"),
        ("__import__('os')", "is not supported"),
        ("[x for x in value.tags]", "is not supported"),
        ("1 < value.amount < 3", "is not supported"),
    ],
)
def test_wrong_expression_is_refused(expression: str, problem: str) -> None:
    with pytest.raises(ValueError, match="--filter") as refused:
        expression_filter(expression)
    assert problem in str(refused.value)


def test_grep_searches_key_value_and_headers() -> None:
    assert [grep_filter(pattern)(READ) for pattern in ("^k1$", "Vien+a", "web", "amoun[^t]")] == [
        True,
        True,
        True,
        False,
    ]
    with pytest.raises(ValueError, match="--grep"):
        grep_filter("(")


def test_key_filter_reads_the_key_form() -> None:
    assert key_filter("k1", None)(READ)
    assert key_filter("6b31", Form.HEX)(READ)
    assert not key_filter("k2", None)(READ)


def test_consume_combines_filters(cluster: Cluster) -> None:
    cluster.create_topic("filtered", 2)
    lines = "".join(f'k{number % 3}:{{"n": {number}}}\n' for number in range(30))
    assert run(cluster.bootstrap, "produce", "filtered", "-K", ":", stdin=lines).code == 0
    both = ("--key", "k1", "--filter", "value.n > 20")
    result = run(cluster.bootstrap, "consume", "filtered", "-e", *both).out.splitlines()
    assert sorted(json.loads(line)["n"] for line in result) == [22, 25, 28]
    assert len(run(cluster.bootstrap, "consume", "filtered", "-e", "--grep", '"n": 1[0-9]').out.splitlines()) == 10
    assert len(run(cluster.bootstrap, "consume", "filtered", "-n", 2, "--key", "k0").out.splitlines()) == 2
    assert run(cluster.bootstrap, "consume", "filtered", "-e", "--filter", "n > 1").code == 2


def test_group_continues_where_it_ended(cluster: Cluster) -> None:
    cluster.create_topic("resumed", 1)

    def consume(*words: object) -> list[str]:
        return run(cluster.bootstrap, "consume", "resumed", "-e", "--group", "resumers", *words).out.split()

    run(cluster.bootstrap, "produce", "resumed", *(word for number in range(5) for word in ("-v", number)))
    assert consume("-n", 2) == ["0", "1"]
    assert consume("-n", 0) == []
    assert consume() == ["2", "3", "4"]
    assert consume() == []
    assert cluster.group("resumers").offsets["resumed", 0] == 5


def test_group_without_offsets_starts_at_the_given_offset(cluster: Cluster) -> None:
    cluster.create_topic("started", 1)
    run(cluster.bootstrap, "produce", "started", "-v", "a", "-v", "b", "-v", "c")
    words = ("consume", "started", "-e", "--group", "starters", "-o", "1")
    assert run(cluster.bootstrap, *words).out.split() == ["b", "c"]
    assert run(cluster.bootstrap, *words).out.split() == []


def test_lines_of_files_are_records(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_topic("filed", 1)
    for name in ("a", "b"):
        (tmp_path / name).write_text("".join(f"{name}{number}\n" for number in range(3)))
    files = (tmp_path / "a", tmp_path / "b")
    assert run(cluster.bootstrap, "produce", "filed", "--lines", *files).code == 0
    assert [record.value for record in cluster.records("filed")] == [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]
    missing = run(cluster.bootstrap, "produce", "filed", "--lines", tmp_path / "a", tmp_path / "none")
    assert (missing.code, len(cluster.records("filed"))) == (2, 6)
    assert run(cluster.bootstrap, "produce", "filed", "--lines", stdin="").code == 2
