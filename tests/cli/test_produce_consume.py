"""`ottla produce` and `ottla consume` against a running cluster, and kcat's format strings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from ottla.client.formats import Form, escaped, pattern, read, show
from ottla.client.reading import Read
from ottla.quantities import parse_time
from ottla.records.batch import read_header
from ottla.records.builder import build_batch
from ottla.records.iterate import Record

from .live import run

if TYPE_CHECKING:
    from pathlib import Path

    from ottla.testing import Cluster

RECORD = Record(7, 1700000000123, b"key", b"value", (("a", b"1"), ("b", None)))
READ = Read("orders", 3, RECORD, read_header(build_batch([RECORD])))
EMPTY = READ._replace(record=Record(8, -1, None, None, ()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%t/%p@%o %T\n", b"orders/3@7 1700000000123\n"),
        ("%k=%s;%K,%S", b"key=value;3,5"),
        ("%h", b"a=1,b="),
        (r"100%% \x41\x4a\t\\", b"100% AJ\t\\"),
        ("%R", b"\0\0\0\5"),
        ("\u00e9 %s", "\u00e9 value".encode()),
    ],
)
def test_format_string_is_kcats(text: str, expected: bytes) -> None:
    assert pattern(text)(READ) == expected


def test_null_has_length_minus_one() -> None:
    assert pattern("%k,%s,%K,%S,%R", null=b"NULL")(EMPTY) == b"NULL,NULL,-1,-1,\xff\xff\xff\xff"


@pytest.mark.parametrize("text", ["%y", "%", "a%"])
def test_unknown_format_letter_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="-f"):
        pattern(text)


@pytest.mark.parametrize(
    ("form", "text", "data"),
    [
        (Form.HEX, b"00ff", b"\0\xff"),
        (Form.BASE64, b"AP8=", b"\0\xff"),
        (Form.INT32, b"-2", b"\xff\xff\xff\xfe"),
        (Form.INT64, b"258", b"\0\0\0\0\0\0\1\2"),
        (Form.FLOAT64, b"0.5", b"\x3f\xe0\0\0\0\0\0\0"),
    ],
)
def test_form_parses_its_own_output(form: Form, text: bytes, data: bytes) -> None:
    assert read(text, form) == data
    assert show(data, form) == text
    with pytest.raises(ValueError, match=form.value):
        read(b"?", form)


def test_value_of_wrong_length_is_printed_in_hexadecimal() -> None:
    assert show(b"abc", Form.INT32) == b"616263"


def test_escapes_become_bytes() -> None:
    assert escaped(r"\x00|\n") == b"\0|\n"
    assert escaped("%s") == b"%s"


def test_time_formats() -> None:
    assert parse_time("1700000000000") == 1_700_000_000_000
    assert parse_time("2023-11-14T22:13:20Z") == 1_700_000_000_000
    assert parse_time("2023-11-14T23:13:20+01:00") == 1_700_000_000_000
    assert parse_time("now") <= parse_time("-1h") + 3_600_000 <= parse_time("now")
    with pytest.raises(ValueError, match="not a time"):
        parse_time("yesterday")


def test_lines_with_keys_and_headers_are_read_back(cluster: Cluster) -> None:
    where = cluster.bootstrap
    cluster.create_topic("lines", 3)
    sent = run(where, "produce", "lines", "-K", ":", "-H", "a=1", "-H", "b", "--json", stdin="k1:v1\nk2:v2\nnokey")
    assert sorted(row["offset"] for row in sent.rows) == [0, 0, 0] or len(sent.rows) == 3
    rows = run(where, "consume", "lines", "-e", "--json").rows
    by_key = {row["key"]: row for row in rows}
    assert by_key["k1"]["value"] == "v1"
    assert by_key["k1"]["headers"] == [{"name": "a", "value": "1"}, {"name": "b", "value": None}]
    assert by_key[None]["value"] == "nokey"
    # librdkafka sends the key to the same partition.
    result: list[int] = []
    producer = Producer({"bootstrap.servers": where, "partitioner": "murmur2_random"})
    producer.produce("lines", b"again", b"k1", on_delivery=lambda _, message: result.append(message.partition()))
    producer.flush(60)
    assert result == [by_key["k1"]["partition"]]


def test_json_output_produced_again_is_equal(cluster: Cluster) -> None:
    where = cluster.bootstrap
    cluster.create_topic("json-in", 2)
    cluster.create_topic("json-out", 2)
    lines = [
        {"key": "a", "value": "b", "headers": {"h": "x"}, "timestamp": 1700000000000, "partition": 1},
        {"key_base64": "AP8=", "value": {"nested": [1, 2]}, "partition": 0},
        {"value": None, "partition": 1},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    assert run(where, "produce", "json-in", "--from-json", stdin=text).code == 0
    copied = run(where, "consume", "json-in", "-e", "--json")
    assert run(where, "produce", "json-out", "--from-json", stdin=copied.out).code == 0
    again = run(where, "consume", "json-out", "-e", "--json")
    assert again.out.replace("json-out", "json-in") == copied.out
    assert copied.rows[0]["key_base64"] == "AP8="
    assert copied.rows[1]["timestamp"] == 1700000000000


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_many_lines_in_every_codec(cluster: Cluster, codec: str) -> None:
    where, topic = cluster.bootstrap, f"many-{codec}"
    cluster.create_topic(topic, 2)
    lines = [f"line {number} " + "x" * 50 for number in range(12_000)]
    assert run(where, "produce", topic, "-z", codec, stdin="\n".join(lines)).code == 0
    assert sorted(run(where, "consume", topic, "-e").out.splitlines()) == sorted(lines)


def test_start_and_end_of_reading(cluster: Cluster) -> None:
    where = cluster.bootstrap
    cluster.create_topic("range", 1)
    for number in range(5):
        text = json.dumps({"value": str(number), "timestamp": 1700000000000 + number * 1000})
        run(where, "produce", "range", "--from-json", stdin=text)

    def values(*words: object) -> list[str]:
        return run(where, "consume", "range", "-e", *words).out.split()

    assert values() == ["0", "1", "2", "3", "4"]
    assert values("-o", "3") == ["3", "4"]
    assert values("-o", "-2") == ["3", "4"]
    assert values("-o", "99") == []
    assert values("-o", "end") == []
    assert values("-n", 2) == ["0", "1"]
    assert values("-n", 0) == []
    assert values("-o", "s@1700000001500") == ["2", "3", "4"]
    assert values("-o", "s@2023-11-14T22:13:21Z", "-o", "e@1700000003000") == ["1", "2"]
    assert run(where, "consume", "range", "-n", 5).out.split() == ["0", "1", "2", "3", "4"]
    assert run(where, "consume", "range", "-o", "soon", "-e").code == 2
    assert run(where, "consume", "range", "-p", 1, "-e").code == 4
    assert run(where, "consume", "none", "-e").code == 4


def test_aborted_and_open_transactions_need_read_uncommitted(cluster: Cluster) -> None:
    where = cluster.bootstrap
    cluster.create_topic("txn", 1)
    producer = Producer({"bootstrap.servers": where, "transactional.id": "cli"})
    producer.init_transactions(60)
    for value, commit in ((b"yes", True), (b"no", False), (b"also", True)):
        producer.begin_transaction()
        producer.produce("txn", value)
        (producer.commit_transaction if commit else producer.abort_transaction)(60)
    # librdkafka does not send records that are aborted before a flush: send one.
    producer.begin_transaction()
    producer.produce("txn", b"sent and aborted")
    producer.flush(60)
    producer.abort_transaction(60)
    producer.begin_transaction()
    producer.produce("txn", b"open")
    producer.flush(60)
    assert run(where, "consume", "txn", "-e").out.split("\n")[:-1] == ["yes", "also"]
    everything = run(where, "consume", "txn", "-e", "--isolation-level", "read_uncommitted").out
    assert "sent and aborted\nopen\n" in everything
    producer.abort_transaction(60)


def test_values_files_and_forms(cluster: Cluster, tmp_path: Path) -> None:
    where = cluster.bootstrap
    cluster.create_topic("forms", 1)
    (tmp_path / "one").write_bytes(b"whole\nfile")
    assert run(where, "produce", "forms", tmp_path / "one").code == 0
    assert (
        run(where, "produce", "forms", "-v", "258", "--value-form", "int32", "-k", "ff", "--key-form", "hex").code == 0
    )
    assert run(where, "produce", "forms", "-Z", "-K", "|", "-D", ";", stdin="|;k|").code == 0
    assert run(where, "consume", "forms", "-n", 1, "-f", "%s").out == "whole\nfile"
    shown = run(
        where, "consume", "forms", "-o", 1, "-n", 1, "-f", "%k %s", "--value-form", "int32", "--key-form", "hex"
    )
    assert shown.out == "ff 258"
    assert run(where, "consume", "forms", "-o", 2, "-e", "-f", "%k,%s;", "-Z", "NULL").out == "NULL,NULL;k,NULL;"
    assert run(where, "produce", "forms", "-v", "x", "--value-form", "int32").code == 2
    assert run(where, "produce", "forms", tmp_path / "none").code == 2
    assert run(where, "produce", "forms", "-p", 9, "-v", "x").code == 4
    assert run(where, "produce", "nowhere", "-v", "x").code == 4
    assert run(where, "produce", "forms", "--acks", "0", "-v", "fire").code == 0
    assert run(where, "consume", "forms", "-f", "%y", "-e").code == 2


def test_idempotent_retry_writes_once(cluster: Cluster) -> None:
    where = cluster.bootstrap
    cluster.create_topic("once", 1)
    lost = cluster.on("Produce", topic="once").drop_connection(after_handling=True)
    sent = run(where, "produce", "once", "-v", "a", "-v", "b", "--json")
    assert [row["offset"] for row in sent.rows] == [0, 1]
    assert lost.hits == 1
    assert [record.value for record in cluster.records("once")] == [b"a", b"b"]
    assert all(record.producer_id >= 0 for record in cluster.records("once"))


@pytest.mark.parametrize("options", [("--no-idempotence",), ("--acks", "1")])
def test_retry_without_idempotence_writes_twice(cluster: Cluster, options: tuple[str, ...]) -> None:
    topic = f"twice{''.join(options)}"
    cluster.create_topic(topic, 1)
    cluster.on("Produce", topic=topic).drop_connection(after_handling=True)
    assert run(cluster.bootstrap, "produce", topic, "-v", "a", *options).code == 0
    assert [(record.value, record.producer_id) for record in cluster.records(topic)] == [(b"a", -1)] * 2


def test_json_output_has_the_order_of_the_lines(cluster: Cluster) -> None:
    cluster.create_topic("told", 3)
    lines = [{"value": "x" * 200_000, "partition": number % 3} for number in range(12)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    rows = run(cluster.bootstrap, "produce", "told", "--from-json", "--json", stdin=text).rows
    assert [(row["partition"], row["offset"]) for row in rows] == [(number % 3, number // 3) for number in range(12)]
    unknown = run(cluster.bootstrap, "produce", "told", "-a", "0", "-v", "x", "--json").rows
    assert [row["offset"] for row in unknown] == [None]


def test_refused_record_is_an_error_with_the_reason(cluster: Cluster) -> None:
    where = cluster.bootstrap
    assert run(where, "topic", "create", "keyed", "-p", 1, "-c", "cleanup.policy=compact").code == 0
    refused = run(where, "produce", "keyed", "-v", "a")
    assert refused.code == 1
    assert "INVALID_RECORD (87): keyed-0: One or more records have been rejected due to 1 record errors" in refused.err
    assert "without a key" in refused.err
    assert run(where, "topic", "create", "short", "-p", 1, "-c", "max.message.bytes=100").code == 0
    large = run(where, "produce", "short", "-v", "a" * 200)
    assert large.code == 1
    assert "MESSAGE_TOO_LARGE (10): short-0: a batch of 2" in large.err
    assert large.err.endswith("bytes is more than its max.message.bytes\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{bad", "Expecting property name"),
        ("[1]", "not a JSON object"),
        ('{"value": "v", "headers": [1]}', "headers: write"),
        ('{"value": "v", "headers": "h"}', "headers: write"),
        ('{"value": "a", "partition": "x"}', 'partition is not a number that a record can have: "x"'),
        ('{"value": "a", "timestamp": 99999999999999999999}', "timestamp is not a number"),
        ('{"key_base64": "!!"}', "key_base64: "),
        ('{"key_base64": 5}', "key_base64: "),
    ],
)
def test_malformed_json_record_is_refused(cluster: Cluster, line: str, message: str) -> None:
    run(cluster.bootstrap, "topic", "create", "from-json", "--if-not-exists")
    refused = run(cluster.bootstrap, "produce", "from-json", "--from-json", stdin=line)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"ottla: record 1: {line[:10]}")
    assert message in refused.err
