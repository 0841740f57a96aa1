"""Control characters from clients never reach a terminal or a log line."""

from __future__ import annotations

import io
import json
import logging
import unicodedata

import pytest
from confluent_kafka import Consumer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ottla.cli import build
from ottla.printable import PrintableFormatter, printable
from ottla.testing import Cluster

HOSTILE = "evil\x1b]0;owned\x07\x9b31m\u202eneko\x7f\n"


def unsafe(text: str) -> list[str]:
    return [character for character in text if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")]


@given(st.text(st.characters()))
def test_printable_text_has_no_control_characters(text: str) -> None:
    assert unsafe(printable(text)) == []


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_printable_json_stays_the_same_document(text: str) -> None:
    document = json.dumps({"value": text}, ensure_ascii=False)
    assert json.loads(printable(document)) == {"value": text}


@pytest.mark.parametrize("text", ["orders", "Bestellungen für Köln", "注文", "👩‍💻", ""])
def test_ordinary_text_is_kept(text: str) -> None:
    assert printable(text) == text


def test_keep_names_the_characters_that_stay() -> None:
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\u001b"


def test_log_record_is_one_line_without_control_characters() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PrintableFormatter("%(levelname)s %(message)s"))
    record = logging.LogRecord("ottla", logging.WARNING, __file__, 1, "group %s", (HOSTILE,), None)
    handler.emit(record)
    line = stream.getvalue()
    assert line.startswith("WARNING group evil\\u001b]0;owned\\u0007\\u009b31m\\u202eneko\\u007f\\n")
    assert unsafe(line.removesuffix("\n")) == []


@pytest.mark.parametrize(
    "words",
    [["group", "list"], ["group", "describe", HOSTILE], ["group", "list", "--json"], ["group", "delete", "no\x1b"]],
)
def test_group_commands_escape_the_names_of_groups(words: list[str]) -> None:
    with Cluster(topics=["t"]) as cluster:
        settings = {"bootstrap.servers": cluster.bootstrap, "group.id": HOSTILE}
        consumer = Consumer(settings)
        consumer.commit(offsets=[TopicPartition("t", 0, 0)], asynchronous=False)
        consumer.close()
        result = CliRunner().invoke(build(["group"]), [*words, "-b", cluster.bootstrap])
        output = result.stdout + result.stderr
        assert "\\u001b" in output
        assert unsafe(output.replace("\n", "")) == []
