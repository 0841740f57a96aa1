"""`ottla schema`: list, show, register, check, compare and delete schemas of any registry."""

import difflib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ottla.cli.options.commands import add_command, add_group
from ottla.cli.options.connect import AsJson
from ottla.cli.terminal.output import (
    FAILED,
    NOT_FOUND,
    UNREACHABLE,
    confirm,
    echo,
    fail,
    print_json,
    print_result,
    print_table,
    until_pipe_closes,
    usage,
)
from ottla.schemas.registry_client import RegistryClient, RegistryRefusedError, RegistryUnreachableError

Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="Name of the subject, such as orders-value.")]
Version = Annotated[str, typer.Argument(metavar="[VERSION]", help="Number of the version, or latest.")]
SchemaFile = Annotated[str, typer.Argument(metavar="FILE", help="Read the schema from this file; - is standard input.")]


class SchemaType(StrEnum):
    """The types of schemas."""

    AVRO = "avro"
    JSON = "json"
    PROTOBUF = "protobuf"


TypeOption = Annotated[
    SchemaType | None,
    typer.Option("--type", "-t", help="Parse the schema as this type.", show_default="by the file's suffix, else avro"),
]
ReferenceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        "-r",
        metavar="NAME=SUBJECT:VERSION",
        help="Resolve a name in the schema to a registered version; repeatable.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """The registry that a command talks to: `add_command` expands it to one option per field."""

    registry: Annotated[
        str,
        typer.Option("--registry", envvar="OTTLA_REGISTRY", metavar="URL", help="Connect to this registry."),
    ] = "http://localhost:8081"
    ca: Annotated[
        str | None,
        typer.Option(
            "--registry-ca",
            envvar="OTTLA_REGISTRY_CA",
            metavar="FILE",
            help="Trust the CA certificates of this PEM file for https.",
            show_default="the system's",
        ),
    ] = None
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="Give up after this many seconds.")
    ] = 30.0

    @contextmanager
    def connect(self) -> Iterator[RegistryClient]:
        """Yield a client; an error becomes one sentence and an exit code."""
        try:
            yield RegistryClient(self.registry, timeout=self.timeout, ca_file=self.ca)
        except RegistryRefusedError as error:
            raise fail(str(error), code=NOT_FOUND if error.is_missing else FAILED) from error
        except RegistryUnreachableError as error:
            raise fail(str(error), code=UNREACHABLE) from error
        except ValueError as error:
            raise usage(str(error)) from error


def register(app: typer.Typer) -> None:
    """Add the commands."""
    schema = add_group(app, "schema")
    add_command(schema, "list", list_, "ottla schema list", "ottla schema list --json")
    add_command(schema, "show", show, "ottla schema show orders-value", "ottla schema show orders-value 3 --json")
    add_command(
        schema,
        "register",
        register_,
        "ottla schema register orders-value order.avsc",
        "ottla schema register orders-value order.proto -r item.proto=item:1",
    )
    add_command(schema, "check", check, "ottla schema check orders-value order.avsc")
    add_command(schema, "diff", diff, "ottla schema diff orders-value 1 2", "ottla schema diff orders-value 1")
    add_command(schema, "delete", delete, "ottla schema delete orders-value --version 1")


def list_(
    *,
    deleted: Annotated[bool, typer.Option("--deleted", help="List soft-deleted subjects too.")] = False,
    as_json: AsJson = False,
    registry: RegistryOptions,
) -> None:
    """List subjects with their latest versions."""
    with registry.connect() as client:
        rows = []
        for subject in client.subjects(deleted=deleted):
            try:
                rows.append(client.version(subject))
            except RegistryRefusedError as error:
                if not error.is_missing:
                    raise
                rows.append({"subject": subject, "deleted": True})
    if as_json:
        for row in rows:
            print_json(row)
        return
    print_table(
        ("SUBJECT", "VERSION", "ID", "TYPE"),
        [
            (row["subject"], row.get("version", "deleted"), row.get("id", ""), row.get("schemaType", "AVRO").lower())
            for row in rows
        ],
        right=("VERSION", "ID"),
    )


def show(subject: Subject, version: Version = "latest", *, as_json: AsJson = False, registry: RegistryOptions) -> None:
    """Print a schema."""
    with registry.connect() as client:
        schema = client.version(subject, version)
    if as_json:
        print_json(schema)
    else:
        echo(_pretty(schema))


def register_(
    subject: Subject,
    file: SchemaFile,
    *,
    type_: TypeOption = None,
    reference: ReferenceOption = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Ignore the order of parts that have no order.")
    ] = False,
    as_json: AsJson = False,
    registry: RegistryOptions,
) -> None:
    """Register a schema.

    A schema that is registered already keeps its id.
    """
    request = _request(file, type_, reference)
    with registry.connect() as client:
        registered = client.register(subject, request, normalize=normalize)
    version = f", version {registered['version']}" if "version" in registered else ""
    print_result(as_json, {"subject": subject, **registered}, f"{subject} has id {registered['id']}{version}")


def check(
    subject: Subject,
    file: SchemaFile,
    *,
    version: Annotated[
        str | None,
        typer.Option("--version", metavar="N", help="Compare with this version.", show_default="as the level requires"),
    ] = None,
    type_: TypeOption = None,
    reference: ReferenceOption = None,
    as_json: AsJson = False,
    registry: RegistryOptions,
) -> None:
    """Check a schema without registering it.

    The exit code is 1 if the schema is incompatible.
    """
    request = _request(file, type_, reference)
    with registry.connect() as client:
        problems = client.check(subject, request, version)
    verdict = "compatible" if not problems else "incompatible:\n" + "\n".join(f"  {problem}" for problem in problems)
    print_result(
        as_json, {"subject": subject, "compatible": not problems, "messages": problems}, f"{file} is {verdict}"
    )
    if problems:
        raise typer.Exit(FAILED)


def diff(
    subject: Subject,
    old: Annotated[str, typer.Argument(metavar="OLD", help="Number of the older version.")],
    new: Annotated[str, typer.Argument(metavar="[NEW]", help="Number of the newer version, or latest.")] = "latest",
    *,
    as_json: AsJson = False,
    registry: RegistryOptions,
) -> None:
    """Print the differences between two versions.

    The exit code is 1 if there are any.
    """
    with registry.connect() as client:
        before, after = (_pretty(client.version(subject, version)).splitlines() for version in (old, new))
    lines = list(difflib.unified_diff(before, after, f"{subject} {old}", f"{subject} {new}", lineterm=""))
    with until_pipe_closes():  # the exit code stays the verdict
        if as_json:
            print_json({"subject": subject, "old": old, "new": new, "diff": lines})
        else:
            for line in lines:
                echo(line)
    if lines:
        raise typer.Exit(FAILED)


def delete(
    subject: Subject,
    *,
    version: Annotated[
        str | None,
        typer.Option("--version", metavar="N", help="Delete only this version.", show_default="all versions"),
    ] = None,
    permanent: Annotated[
        bool,
        typer.Option("--permanent", help="Delete permanently what is soft-deleted; its id can no longer be read."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
    registry: RegistryOptions,
) -> None:
    """Delete a subject or a version.

    New schemas are no longer checked against it.
    """
    name = subject if version is None else f"version {version} of {subject}"
    confirm(f"Delete {name}{' permanently' if permanent else ''}?", yes=yes)
    with registry.connect() as client:
        deleted = client.delete(subject, version, permanent=permanent)
    versions = deleted if isinstance(deleted, list) else [deleted]
    print_result(as_json, {"subject": subject, "deleted": versions}, f"deleted versions {versions} of {subject}")


def _pretty(version: dict[str, Any]) -> str:
    if version.get("schemaType", "AVRO") == "PROTOBUF":
        return str(version["schema"]).rstrip("\n")
    return json.dumps(json.loads(version["schema"]), indent=2, ensure_ascii=False)


def _request(file: str, type_: SchemaType | None, references: list[str] | None) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise usage(f"{file}: {error}") from error
    if type_ is None:
        type_ = (
            SchemaType.PROTOBUF
            if file.endswith(".proto")
            else SchemaType.JSON
            if file.endswith(".json")
            else SchemaType.AVRO
        )
    listed = []
    for word in references or ():
        name, equals, source = word.partition("=")
        subject, colon, number = source.rpartition(":")
        if not equals or not colon or not number.isdigit():
            raise usage(f"--reference {word}: write NAME=SUBJECT:VERSION")
        listed.append({"name": name, "subject": subject, "version": int(number)})
    return {"schema": text, "schemaType": type_.value.upper(), "references": listed}
