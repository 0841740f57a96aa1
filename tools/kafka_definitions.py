"""Reads the message definitions inside Apache Kafka's jars, and turns each into the rows of a declaration.

What is written with them, and where, is `generate_messages`'s business.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
ARTIFACTS = (
    "kafka-clients",
    "kafka-metadata",
    "kafka-raft",
    "kafka-storage",
    "kafka-group-coordinator",
    "kafka-transaction-coordinator",
    "kafka-share-coordinator",
)
MAX_VERSION = 32767

PYTHON_TYPES = {
    "bool": "bool",
    "int8": "int",
    "int16": "int",
    "uint16": "int",
    "int32": "int",
    "uint32": "int",
    "int64": "int",
    "float64": "float",
    "string": "str",
    "bytes": "bytes",
    "records": "Records",
    "uuid": "Uuid",
}
SPECIFIERS = {"bool": "boolean", "bytes": "bytes_", "records": "records_"}
RESERVED = {"encode", "encode_parts", "decode", "decode_from", "unknown_tags"}


# -- where the facts are ---------------------------------------------------------------------------


def download(version: str) -> Path:
    """Let Maven put the jars into .cache, once per release."""
    folder = ROOT / ".cache" / f"kafka-definitions-{version}"
    if all((folder / f"{name}-{version}.jar").exists() for name in ARTIFACTS):
        return folder
    dependencies = "".join(
        f"<dependency><groupId>org.apache.kafka</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version></dependency>"
        for name in ARTIFACTS
    )
    with tempfile.TemporaryDirectory() as temporary:
        pom = Path(temporary) / "pom.xml"
        pom.write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>ottla</groupId><artifactId>definitions</artifactId><version>1</version>"
            f"<dependencies>{dependencies}</dependencies></project>"
        )
        subprocess.run(
            [
                "mvn",
                "-q",
                "-B",
                "-f",
                str(pom),
                "dependency:copy-dependencies",
                f"-DoutputDirectory={folder}",
            ],
            check=True,
        )
    return folder


def definitions(jars: Path, artifact: str, version: str) -> Iterator[dict[str, Any]]:
    """Yield the definitions in one jar, by name."""
    with zipfile.ZipFile(jars / f"{artifact}-{version}.jar") as jar:
        for name in sorted(jar.namelist()):
            if re.search(r"(^|/)(message|metadata)/\w+\.json$", name):
                text = jar.read(name).decode()
                yield json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))


ERRORS_JAVA = """
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.Errors;

class PrintErrors {
    public static void main(String[] none) {
        for (Errors error : Errors.values())
            System.out.println(error.code() + " " + error.name() + " "
                + (error.exception() instanceof RetriableException ? "1" : "0"));
    }
}
"""


def error_codes(jars: Path) -> list[tuple[int, str, bool]]:
    """Ask Kafka's own class for every error: code, name, whether a client may retry."""
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / "PrintErrors.java"
        source.write_text(ERRORS_JAVA)
        printed = subprocess.run(
            ["java", "-cp", f"{jars}/*", str(source)], check=True, capture_output=True, text=True
        ).stdout
    rows = [line.split() for line in printed.splitlines()]
    return sorted((int(code), name, retriable == "1") for code, name, retriable in rows)


# -- what a definition says ------------------------------------------------------------------------


def parse_versions(text: str) -> tuple[int, int]:
    if text == "none":
        return 1, 0
    first, dash, last = text.partition("-")
    if first.endswith("+"):
        return int(first[:-1]), MAX_VERSION
    return int(first), int(last if dash else first)


def intersect(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return max(a[0], b[0]), min(a[1], b[1])


def covers(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] <= b[0] and b[1] <= a[1]


def snake_case(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name.replace("KRaft", "Kraft"))
    return words.lower()


@dataclass
class StructText:
    """A structure as it will be written: the name may still change when two differ under one name."""

    name: str
    owner: str
    rows: list[tuple[str, str, str, str | None]] = field(default_factory=list)
    """Name, Python type, call of the specifier, and the structure named in both with a `%s`."""


class Definition:
    """One definition, turned into structures (innermost first) and the message itself."""

    def __init__(self, json_: dict[str, Any]) -> None:
        self.name: str = json_["name"]
        self.kind: str = json_["type"]
        self.api_key: int | None = json_.get("apiKey")
        self.valid_text: str = json_["validVersions"]
        self.flexible_text: str = json_.get("flexibleVersions", "none")
        self.valid = parse_versions(self.valid_text)
        self.flexible = parse_versions(self.flexible_text)
        self.unstable: bool = json_.get("latestVersionUnstable", False)
        self.listeners: list[str] = json_.get("listeners", [])
        self.structs: list[StructText] = []
        self._shared = {item["name"]: item["fields"] for item in json_.get("commonStructs", [])}
        self._done: set[str] = set()
        self.message = StructText(self.name, self.name)
        self._fill(self.message, json_.get("fields", []), self.valid)

    def _fill(self, target: StructText, fields: list[dict[str, Any]], valid: tuple[int, int]) -> None:
        for item in fields:
            row = self._row(item, valid)
            if row is not None:
                target.rows.append(row)

    def _nested(self, name: str, fields: list[dict[str, Any]] | None, valid: tuple[int, int]) -> None:
        if name in self._done:
            return
        self._done.add(name)
        nested = StructText(name, self.name)
        if fields is None:
            fields, valid = self._shared[name], self.valid
        self._fill(nested, fields, valid)
        self.structs.append(nested)

    def _row(self, item: dict[str, Any], valid: tuple[int, int]) -> tuple[str, str, str, str | None] | None:
        versions_text: str = item["versions"] if "versions" in item else item["taggedVersions"]
        versions = parse_versions(versions_text)
        present = intersect(versions, valid)
        if present[0] > present[1]:
            return None
        name = snake_case(item["name"])
        if name in RESERVED:
            raise SystemExit(f"{self.name}.{name}: the name is taken by the schema language")
        kafka_type: str = item["type"]
        is_array = kafka_type.startswith("[]")
        element = kafka_type.removeprefix("[]")
        is_struct = element[0].isupper()
        if is_struct:
            self._nested(element, item.get("fields"), present)

        options = []
        if not covers(versions, valid):
            options.append(f'versions="{versions_text}"')
        nullable_text = item.get("nullableVersions", "none")
        nullable = intersect(parse_versions(nullable_text), present)
        is_nullable = nullable[0] <= nullable[1]
        if is_nullable:
            options.append(f'nullable="{nullable_text}"')
        if "tag" in item:
            options.append(f"tag={item['tag']}")
            if not covers(parse_versions(item["taggedVersions"]), present):
                options.append(f'tagged="{item["taggedVersions"]}"')
        default = default_text(item)
        if default is None and is_array:
            options.append("default_factory=list")
        elif default is None:
            options.append("default_factory=%s")
        else:
            options.append(f"default={default}")
        if item.get("ignorable"):
            options.append("ignorable=True")
        if "flexibleVersions" in item:
            options.append(f'flexible="{item["flexibleVersions"]}"')

        python_type = "%s" if is_struct else PYTHON_TYPES[element]
        specifier = SPECIFIERS.get(element, element)
        if is_array:
            python_type = f"list[{python_type}]"
            options.insert(0, "%s" if is_struct else specifier)
            specifier = "array"
        elif is_struct:
            options.insert(0, "%s")
            specifier = "struct"
        if is_nullable or default == "None":
            python_type += " | None"
        return name, python_type, f"{specifier}({', '.join(options)})", element if is_struct else None


def default_text(item: dict[str, Any]) -> str | None:
    """The default as Python, or None where each message gets a fresh list or structure."""
    kafka_type: str = item["type"]
    default = item.get("default")
    if default is None:
        default = ""  # a null without quotes is no default to Kafka, which is not the default null
    if default == "null" or kafka_type == "records":
        return "None"
    if kafka_type.startswith("[]") or kafka_type[0].isupper():
        return None
    if kafka_type == "bool":
        return "True" if str(default).lower() == "true" else "False"
    if kafka_type == "string":
        return json.dumps(default)
    if kafka_type == "bytes":
        return 'b""'
    if kafka_type == "uuid":
        return "ZERO_UUID"
    if kafka_type == "float64":
        return repr(float(default or 0))
    return str(int(str(default or 0), 0))
