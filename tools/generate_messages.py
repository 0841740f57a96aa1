"""Writes the message modules from the definitions inside Apache Kafka's jars.

    python tools/generate_messages.py                   write the modules of the release below
    python tools/generate_messages.py --version 4.4.0   the next release: one command and a diff
    python tools/generate_messages.py --check           say whether the tree is what would be written

Only facts are taken over: names, types, versions, defaults. The jars come from Maven; `--jars` names a folder
that already holds them.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parent.parent
PROTOCOL = ROOT / "src" / "ottla" / "protocol"
KAFKA_VERSION = "4.3.1"
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

CONTROL = (
    "ControlRecordTypeSchema",
    "EndTxnMarker",
    "LeaderChangeMessage",
    "SnapshotHeaderRecord",
    "SnapshotFooterRecord",
    "KRaftVersionRecord",
    "VotersRecord",
)
# The modules of record_schemas: named messages, or what a jar holds that no module before it has.
RECORD_MODULES: tuple[tuple[str, str, str | tuple[str, ...]], ...] = (
    ("metadata", "Records of __cluster_metadata", "kafka-metadata"),
    ("group", "Keys and values of __consumer_offsets", "kafka-group-coordinator"),
    ("transaction", "Keys and values of __transaction_state", "kafka-transaction-coordinator"),
    ("share", "Keys and values of __share_group_state", "kafka-share-coordinator"),
    ("control", "Values of control records, and the type in their keys", CONTROL),
    (
        "consumer_protocol",
        "What classic members tell each other through the coordinator",
        ("ConsumerProtocolSubscription", "ConsumerProtocolAssignment"),
    ),
    ("principal", "A principal inside an Envelope", ("DefaultPrincipalData",)),
    (
        "storage",
        "The files *.snapshot of a partition, and quorum-state",
        ("ProducerSnapshot", "QuorumStateData"),
    ),
    ("remote_storage", "Records of __remote_log_metadata", "kafka-storage"),
)

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
SCHEMA_NAMES = (
    *("Message", "Records", "Struct", "Uuid", "ZERO_UUID", "array", "boolean", "bytes_", "float64", "int8"),
    *("int16", "int32", "int64", "records_", "string", "struct", "uint16", "uint32", "uuid"),
)
RESERVED = {"encode", "encode_parts", "decode", "decode_from", "unknown_tags"}


# -- where the facts are ---------------------------------------------------------------------------


def download(version: str) -> Path:
    """Let Maven put the jars into .cache, once per release."""
    folder = ROOT / ".cache" / f"kafka-{version}"
    if all((folder / f"{name}-{version}.jar").exists() for name in ARTIFACTS):
        return folder
    wanted = "".join(
        f"<dependency><groupId>org.apache.kafka</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version></dependency>"
        for name in ARTIFACTS
    )
    with tempfile.TemporaryDirectory() as temporary:
        pom = Path(temporary) / "pom.xml"
        pom.write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>ottla</groupId><artifactId>definitions</artifactId><version>1</version>"
            f"<dependencies>{wanted}</dependencies></project>"
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
    given = item.get("default", "")
    nothing = "default" in item and (given is None or given == "null")
    if nothing or kafka_type == "records":
        return "None"
    if kafka_type.startswith("[]") or kafka_type[0].isupper():
        return None
    if kafka_type == "bool":
        return "True" if str(given).lower() == "true" else "False"
    if kafka_type == "string":
        return json.dumps(given)
    if kafka_type == "bytes":
        return 'b""'
    if kafka_type == "uuid":
        return "ZERO_UUID"
    if kafka_type == "float64":
        return repr(float(given or 0))
    return str(int(str(given or 0), 0))


# -- what is written -------------------------------------------------------------------------------


def notice(version: str) -> str:
    return f"Generated by tools/generate_messages.py from Apache Kafka {version}; change the tool, not this file."


def class_text(struct: StructText, names: dict[tuple[str, str], str], bases: str) -> str:
    lines = [f"class {names[struct.owner, struct.name]}({bases}):"]
    for name, python_type, call, nested in struct.rows:
        if nested is not None:
            nested_name = names[struct.owner, nested]
            python_type, call = python_type.replace("%s", nested_name), call.replace("%s", nested_name)
        lines.append(f"    {name}: {python_type} = {call}")
    if not struct.rows:
        lines.append("    pass")
    return "\n".join(lines)


def choose_names(parts: list[Definition], prefixes: dict[str, str]) -> dict[tuple[str, str], str]:
    """Name the structures of a module: alike ones share a class, others get their message's prefix."""
    bodies: dict[str, dict[str, set[str]]] = {}
    for part in parts:
        for struct in part.structs:
            bodies.setdefault(struct.name, {}).setdefault(repr(struct.rows), set()).add(struct.owner)
    names = {(part.name, part.name): part.name for part in parts}
    differing = {name for name, variants in bodies.items() if len(variants) > 1}
    changed = True
    while changed:  # a structure that holds a renamed one is not alike any more
        changed = False
        for part in parts:
            for struct in part.structs:
                shared = len([1 for other in parts for s in other.structs if s.name == struct.name]) > 1
                holds = {row[3] for row in struct.rows} & differing
                if shared and holds and struct.name not in differing:
                    differing.add(struct.name)
                    changed = True
    messages = {part.name for part in parts}
    for part in parts:
        for struct in part.structs:
            clash = struct.name in differing or struct.name in messages
            names[part.name, struct.name] = prefixes[part.name] + struct.name if clash else struct.name
    return names


def module_text(docstring: str, parts: list[Definition], prefixes: dict[str, str]) -> str:
    names = choose_names(parts, prefixes)
    classes, written = [], set()
    for part in parts:
        for struct in part.structs:
            name = names[part.name, struct.name]
            if name not in written:
                written.add(name)
                classes.append(class_text(struct, names, "Struct"))
        options = ["Message"]
        if part.api_key is not None:
            options.append(f"api_key={part.api_key}")
        options.append(f'kind="{part.kind}"')
        options.append(f'versions="{part.valid_text}"')
        usable = intersect(part.flexible, part.valid)
        options.append(f'flexible="{part.flexible_text if usable[0] <= usable[1] else "none"}"')
        classes.append(class_text(part.message, names, ", ".join(options)))
    body = "\n\n\n".join(classes)
    used = [word for word in SCHEMA_NAMES if re.search(rf"\b{word}\b", body)]
    return (
        f'"""{docstring}"""\n\nfrom __future__ import annotations\n\n'
        f"from ottla.protocol.schema import {', '.join(used)}\n\n\n{body}\n"
    )


def api_modules(clients: list[Definition], version: str) -> tuple[dict[str, str], list[list[Definition]]]:
    """A module per API, holding request and response; removed APIs have none."""
    by_key: dict[int, list[Definition]] = {}
    for part in clients:
        if part.kind in ("request", "response") and part.valid[0] <= part.valid[1]:
            assert part.api_key is not None
            by_key.setdefault(part.api_key, []).append(part)
    modules, apis = {}, []
    for key, parts in sorted(by_key.items()):
        parts.sort(key=lambda part: part.kind)
        request, response = parts
        apis.append(parts)
        api = request.name.removesuffix("Request")
        prefixes = {request.name: "Request", response.name: "Response"}
        text = module_text(f"{api} ({key}).\n\n{notice(version)}\n", parts, prefixes)
        modules[f"messages/k{key:02d}_{snake_case(api)}.py"] = text
    return modules, apis


def api_table(apis: list[list[Definition]], version: str) -> str:
    keys, rows = [], []
    for request, _response in apis:
        api = request.name.removesuffix("Request")
        keys.append(f"    {snake_case(api).upper()} = {request.api_key}")
        low, high = request.valid
        stable = high - 1 if request.unstable else high
        flexible = request.flexible[0] if request.flexible[0] <= request.flexible[1] else MAX_VERSION + 1
        rows.append(
            f'    Api({request.api_key}, "{api}", "k{request.api_key:02d}_{snake_case(api)}", {low}, {high},'
            f" {stable}, {min(flexible, MAX_VERSION + 1)}, {tuple(sorted(request.listeners))!r}),"
        )
    return f'''"""The APIs that Kafka has: key, name, versions.

{notice(version)}
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class ApiKey(IntEnum):
    """The number that opens a request."""

{chr(10).join(keys)}


class Api(NamedTuple):
    """One API: where its messages are and which versions they have."""

    key: int
    name: str
    module: str
    min_version: int
    max_version: int
    max_stable_version: int
    first_flexible_version: int
    listeners: tuple[str, ...]

    @property
    def versions(self) -> range:
        """Every version that the definitions have, the unstable one too."""
        return range(self.min_version, self.max_version + 1)


APIS = (
{chr(10).join(rows)}
)
'''


def error_module(codes: list[tuple[int, str, bool]], version: str) -> str:
    members = "\n".join(f"    {name} = {code}" for code, name, _ in codes)
    retriable = ", ".join(str(code) for code, _, retriable in codes if retriable)
    return f'''"""Kafka's error codes.

{notice(version)}
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """Every error that a response can carry; 0 is none."""

{members}

    @property
    def retriable(self) -> bool:
        """Whether a client may try again without changing anything."""
        return self.value in _RETRIABLE


_RETRIABLE = frozenset(({retriable}))
'''


def generate(jars: Path, version: str) -> dict[str, str]:
    """All files by their path below protocol/."""
    by_jar = {name: [Definition(item) for item in definitions(jars, name, version)] for name in ARTIFACTS}
    clients = by_jar["kafka-clients"]
    files, apis = api_modules(clients, version)
    files["messages/__init__.py"] = (
        '"""One module per API, named by key and name; `ottla.protocol.api` loads them when asked.\n\n'
        f'{notice(version)}\n"""\n'
    )
    headers = [part for part in clients if part.kind == "header"]
    files["messages/header.py"] = module_text(
        f"The headers of requests and responses.\n\n{notice(version)}\n",
        headers,
        {part.name: part.name for part in headers},
    )
    files["record_schemas/__init__.py"] = (
        '"""What Kafka keeps inside records and small files; `ottla.protocol.record_values` reads it.\n\n'
        f'{notice(version)}\n"""\n'
    )
    placed = {part.name for parts in apis for part in parts} | {part.name for part in headers}
    everything = {part.name: part for parts in by_jar.values() for part in parts}
    for module, title, source in RECORD_MODULES:
        if isinstance(source, str):
            parts = [part for part in by_jar[source] if part.name not in placed]
            parts.sort(key=lambda part: (-1 if part.api_key is None else part.api_key, part.name))
        else:
            parts = [everything[name] for name in source]
        placed |= {part.name for part in parts}
        prefixes = {part.name: part.name.removesuffix("Value") for part in parts}
        text = module_text(f"{title}.\n\n{notice(version)}\n", parts, prefixes)
        files[f"record_schemas/{module}.py"] = f"# ruff: noqa: D101\n{text}"
    left = [
        part.name
        for parts in by_jar.values()
        for part in parts
        if part.name not in placed and part.valid[0] <= part.valid[1]
    ]
    if left:
        raise SystemExit(f"no module is named for {', '.join(left)}: add them to RECORD_MODULES")
    files["api_table.py"] = api_table(apis, version)
    files["error_codes.py"] = error_module(error_codes(jars), version)
    return {path: ruff_format(text) for path, text in files.items()}


def ruff_format(text: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    command = [str(ruff) if ruff.exists() else "ruff"]
    for arguments in (["check", "--fix", "--select", "I", "-q", "-"], ["format", "-q", "-"]):
        text = subprocess.run(
            [*command, *arguments, "--stdin-filename", str(PROTOCOL / "generated.py")],
            input=text, text=True, capture_output=True, check=True, cwd=ROOT,
        ).stdout  # fmt: skip
    return text


def differences(files: dict[str, str]) -> Iterable[str]:
    for path, text in files.items():
        target = PROTOCOL / path
        if not target.exists():
            yield f"{path} is missing"
        elif target.read_text() != text:
            yield f"{path} differs"
    for folder in ("messages", "record_schemas"):
        for target in (PROTOCOL / folder).glob("*.py"):
            if f"{folder}/{target.name}" not in files:
                yield f"{folder}/{target.name} is not generated any more"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default=KAFKA_VERSION, help="the release of Apache Kafka (%(default)s)")
    parser.add_argument("--jars", type=Path, help="a folder that holds the jars already")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something would change")
    options = parser.parse_args()
    files = generate(options.jars or download(options.version), options.version)
    changes = list(differences(files))
    for change in changes:
        print(change)
    if options.check:
        print("up to date" if not changes else "run tools/generate_messages.py")
        return 1 if changes else 0
    for path, text in files.items():
        (PROTOCOL / path).parent.mkdir(parents=True, exist_ok=True)
        (PROTOCOL / path).write_text(text)
    print(f"{len(files)} files of Apache Kafka {options.version}, {len(changes)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
