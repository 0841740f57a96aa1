"""What every command that talks to a cluster shares: where it is, how long to wait, and what an error becomes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, TypeVar

import typer

from ottla.cli.output import BAD_USAGE, FAILED, fail, pairs
from ottla.client import Client, ConnectionFailedError, Security
from ottla.client.auth import refuse_secrets, security_from_properties
from ottla.protocol.errors import ErrorCode, KafkaError

T = TypeVar("T")

UNREACHABLE = 3
NOT_FOUND = 4

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "-b",
        envvar="OTTLA_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Where to reach the cluster; several with commas between.",
    ),
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "-X",
        metavar="KEY=VALUE",
        help="A client property such as security.protocol=SASL_SSL; may be repeated.",
        show_default=False,
    ),
]
PropertiesFile = Annotated[
    str | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="A file of client properties, as Kafka's own tools take it.",
        show_default=False,
    ),
]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="How long to try.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]

LOCAL = "localhost:9092"
SECONDS = 30.0

_NOT_THERE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    }
)


@contextmanager
def connected(bootstrap: str, properties: Sequence[str] | None, file: str | None, timeout: float) -> Iterator[Client]:
    """A client for the length of a command; what goes wrong becomes one sentence and an exit code."""
    try:
        with Client(bootstrap, timeout=timeout, security=_security(properties, file)) as client:
            yield client
    except KafkaError as error:
        raise fail(str(error), code=_exit_code(error)) from error
    except ConnectionFailedError as error:
        raise fail(str(error), code=UNREACHABLE) from error
    except ValueError as error:
        raise fail(str(error), code=BAD_USAGE) from error


def one_by_one(things: Iterable[T], do: Callable[[T], None]) -> None:
    """Do something for each; what Kafka refuses is told and the others are done, but the command has failed."""
    code = 0
    for thing in things:
        try:
            do(thing)
        except KafkaError as error:
            code = code or _exit_code(error)
            fail(str(error))
    if code:
        raise typer.Exit(code)


def _exit_code(error: KafkaError) -> int:
    return NOT_FOUND if error.code in _NOT_THERE else FAILED


def client_properties(words: Sequence[str] | None, file: str | None) -> dict[str, str]:
    """The properties of a file, then those of the command line, which win."""
    found: dict[str, str] = {}
    if file is not None:
        from ottla.cluster.properties_file import parse_properties

        try:
            with open(file, encoding="utf-8") as opened:
                found.update((each.key, each.value) for each in parse_properties(opened.read()))
        except OSError as error:
            raise ValueError(f"--command-config {file}: {error.strerror}") from error
    return found | pairs("--property", words)


def _security(words: Sequence[str] | None, file: str | None) -> Security | None:
    refuse_secrets(client_properties(words, None))
    return security_from_properties(client_properties(words, file))
