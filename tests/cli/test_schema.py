"""`ottla schema` against a registry."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from ottla.cli import build
from ottla.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from click.testing import Result

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
WIDER = {**ORDER, "fields": [*ORDER["fields"], {"name": "n", "type": "int", "default": 0}]}
OTHER = {**ORDER, "fields": [{"name": "q", "type": "int"}]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(registry=True) as cluster:
        yield cluster


@pytest.fixture
def run(cluster: Cluster) -> Callable[..., Result]:
    cluster.reset()
    app = build(["schema"])

    def run(*words: str, code: int = 0, stdin: str = "") -> Result:
        result = CliRunner().invoke(app, ["schema", *words, "--registry", cluster.registry_url], input=stdin)
        assert result.exit_code == code, result.output
        return result

    return run


def write(folder: Path, name: str, content: object) -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_schema_is_registered_checked_compared_and_deleted(run: Callable[..., Result], tmp_path: Path) -> None:
    first, second, wrong = (write(tmp_path, f"{n}.avsc", content) for n, content in enumerate((ORDER, WIDER, OTHER)))
    assert run("register", "orders-value", first).output == "orders-value has id 1, version 1\n"
    assert run("check", "orders-value", second).output.endswith("is compatible\n")
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in run("check", "orders-value", wrong, code=1).output
    run("register", "orders-value", "-", stdin=json.dumps(WIDER))
    assert '+      "name": "n",' in run("diff", "orders-value", "1", code=1).output
    run("diff", "orders-value", "1", "1")
    assert json.loads(run("show", "orders-value").output) == WIDER
    assert json.loads(run("list", "--json").output)["version"] == 2
    assert run("list").output.split() == ["SUBJECT", "VERSION", "ID", "TYPE", "orders-value", "2", "2", "avro"]
    assert run("delete", "orders-value", "--version", "1", "--yes").output == "deleted versions [1] of orders-value\n"
    run("delete", "orders-value", code=2)
    run("delete", "orders-value", "--yes")
    assert "deleted" in run("list", "--deleted").output


def test_type_is_taken_from_the_suffix_and_references_are_resolved(run: Callable[..., Result], tmp_path: Path) -> None:
    run("register", "item", write(tmp_path, "item.proto", 'syntax = "proto3"; message Item {}'))
    order = write(tmp_path, "order.proto", 'syntax = "proto3"; import "item.proto"; message Order { Item i = 1; }')
    run("register", "order", order, "-r", "item.proto=item:1")
    assert run("show", "order").output.startswith('syntax = "proto3";')
    run("register", "page", write(tmp_path, "page.json", {"type": "object"}))
    assert {json.loads(line)["schemaType"] for line in run("list", "--json").output.splitlines()} == {
        "PROTOBUF",
        "JSON",
    }


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["show", "none"], 4, "Subject 'none' not found. (40401)"),
        (["register", "a", "missing.avsc"], 2, "missing.avsc: "),
        (["register", "a", "-", "-r", "x"], 2, "--reference x: write NAME=SUBJECT:VERSION"),
        (["register", "a", "-"], 1, "Empty schema (42201)"),
    ],
)
def test_mistake_is_named_with_an_exit_code(
    run: Callable[..., Result], words: list[str], code: int, message: str
) -> None:
    assert message in run(*words, code=code).output


def test_unreachable_registry_has_its_exit_code() -> None:
    for url, code in (("http://127.0.0.1:1", 3), ("ftp://x", 2)):
        result = CliRunner().invoke(build(["schema"]), ["schema", "list", "--registry", url])
        assert result.exit_code == code


def test_values_are_written_and_read_with_the_registry(
    cluster: Cluster, run: Callable[..., Result], tmp_path: Path
) -> None:
    cluster.create_topic("orders")
    run("register", "orders-value", write(tmp_path, "order.avsc", WIDER))
    app = build(["produce", "consume"])

    def call(*words: str, code: int = 0, stdin: str = "") -> str:
        options = ["-b", cluster.bootstrap, "--value", "avro", "--registry", cluster.registry_url]
        result = CliRunner().invoke(app, [*words, *options], input=stdin)
        assert result.exit_code == code, result.output
        return result.output

    call("produce", "orders", stdin='{"id": "a", "n": 1}\n{"id": "b", "n": 2}\n')
    assert cluster.records("orders")[0].value == b"\0\0\0\0\1\x02a\x02"
    assert call("consume", "orders", "-e").splitlines() == ['{"id": "a", "n": 1}', '{"id": "b", "n": 2}']
    assert json.loads(call("consume", "orders", "-e", "-n", "1", "--json"))["value"] == {"id": "a", "n": 1}
    assert call("consume", "orders", "-e", "--filter", "value.n > 1") == '{"id": "b", "n": 2}\n'
    assert "the schema does not describe the value" in call("produce", "orders", code=2, stdin='{"id": 5}\n')
    assert "(40401)" in call("produce", "orders", "--subject", "none", code=2, stdin="1")
    CliRunner().invoke(app, ["produce", "orders", "-v", "plain text", "-b", cluster.bootstrap])
    assert "orders-0 offset 2: cannot decode the value: the magic byte is 112" in call(
        "consume", "orders", "-e", code=2
    )


@pytest.mark.parametrize(
    ("form", "suffix", "schema", "value"),
    [
        ("avro", "avsc", {"type": "record", "name": "O", "fields": [{"name": "id", "type": "string"}]}, {"id": "a"}),
        ("json-schema", "json", {"type": "object", "properties": {"id": {"type": "string"}}}, {"id": "a"}),
        ("protobuf", "proto", 'syntax = "proto3"; message O { string id = 1; }', {"id": "a"}),
    ],
)
def test_produce_registers_a_schema_and_consume_checks_its_type(
    cluster: Cluster, tmp_path: Path, form: str, suffix: str, schema: object, value: object
) -> None:
    topic = f"typed-{form}"
    cluster.create_topic(topic)
    file = tmp_path / f"schema.{suffix}"
    file.write_text(schema if isinstance(schema, str) else json.dumps(schema))
    app = build(["produce", "consume"])
    options = ["-b", cluster.bootstrap, "--registry", cluster.registry_url]

    def call(*words: str, stdin: str = "") -> Result:
        return CliRunner().invoke(app, [*words, *options], input=stdin)

    line = json.dumps(value)
    sent = call("produce", topic, "--value", form, "--schema", str(file), stdin=line)
    assert sent.exit_code == 0, sent.output
    assert json.loads(call("consume", topic, "-e", "--value", form).output) == value
    assert json.loads(call("consume", topic, "-e", "--value", "registry").output) == value
    copied = call("consume", topic, "-e", "--json", "--value", form).output
    assert call("produce", topic, "--from-json", "--value", form, stdin=copied).exit_code == 0
    records = cluster.records(topic)
    assert records[0].value == records[1].value
    assert [record.value for record in cluster.records(topic, decode=True)] == [value, value]
    other = "avro" if form == "protobuf" else "protobuf"
    refused = call("consume", topic, "-e", "--value", other)
    assert refused.exit_code == 2
    assert f"{topic}-0 offset 0: cannot decode the value: the schema is {form}, not {other}" in refused.output
    assert f"subject {topic}-value: the schema is {form}" in call("produce", topic, "--value", other, stdin="1").output


def test_keys_are_written_and_read_with_the_registry(cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_topic("keyed")
    app = build(["produce", "consume", "schema"])
    where = ["--registry", cluster.registry_url]
    CliRunner().invoke(app, ["schema", "register", "keyed-key", write(tmp_path, "k.avsc", "long"), *where])
    options = ["-b", cluster.bootstrap, "--key-form", "avro", *where]
    assert CliRunner().invoke(app, ["produce", "keyed", "-K", ":", *options], input="7:text").exit_code == 0
    assert CliRunner().invoke(app, ["consume", "keyed", "-e", "-K", ":", *options]).output == "7:text\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--value", "avro"], "require --registry URL"),
        (["--schema", "x.avsc"], "--subject and --schema require --value"),
        (["--value", "registry", "--schema", "x.avsc", "--registry", "localhost"], "--schema requires --value avro"),
        (["--key-subject", "s"], "--key-subject requires --key-form"),
        (["--value", "avro", "--schema", "/no/such.avsc", "--registry", "localhost"], "No such file"),
        (["--value", "avro", "--registry", "https://localhost", "--registry-ca", "/no/ca"], "no CA certificates"),
    ],
)
def test_registry_options_that_do_not_fit_are_refused(cluster: Cluster, words: list[str], message: str) -> None:
    result = CliRunner().invoke(build(["produce"]), ["produce", "t", "-b", cluster.bootstrap, *words], input="1")
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_commands_read_a_registry_with_users_and_tls(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    with Cluster(registry=True, tls=True, users={"alice": "s:cret"}) as cluster:
        ca.write_text(cluster.ca_pem)
        url = cluster.registry_url.replace("https://", "https://alice:s%3Acret@")
        app = build(["schema"])
        file = write(tmp_path, "order.avsc", WIDER)
        words = ["--registry", url, "--registry-ca", str(ca)]
        assert CliRunner().invoke(app, ["schema", "register", "a", file, *words]).exit_code == 0
        assert (
            "(401)"
            in CliRunner().invoke(app, ["schema", "list", "--registry", url.replace("s%3A", "x"), *words[2:]]).output
        )
        untrusted = CliRunner().invoke(app, ["schema", "list", "--registry", url])
        assert untrusted.exit_code == 3
        assert "CERTIFICATE_VERIFY_FAILED" in untrusted.output
