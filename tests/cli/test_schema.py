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
        options = ["-b", cluster.bootstrap, "--value-form", "registry", "--registry", cluster.registry_url]
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
