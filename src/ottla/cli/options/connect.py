"""The options of every command that talks to a cluster, and the exit codes of its errors."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, TypeVar

import typer

from ottla.cli.terminal.output import BAD_USAGE, FAILED, NOT_FOUND, UNREACHABLE, fail, pairs, warn
from ottla.client import Client, ConnectionFailedError
from ottla.client.auth import SECURITY_PROPERTIES, refuse_secrets, security_from_properties
from ottla.protocol.errors import ErrorCode, KafkaError

T = TypeVar("T")

LOCAL = "localhost:9092"
SECONDS = 30.0
CLIENT_ID = "client.id"
PROPERTIES = frozenset({*SECURITY_PROPERTIES, CLIENT_ID})
"""The client properties that have an effect. Kafka's clients have many more."""

Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "-X",
        metavar="KEY=VALUE",
        help="Set a client property such as security.protocol=SASL_SSL; repeatable.",
        show_default=False,
    ),
]
PropertiesFile = Annotated[
    str | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="Read client properties from a file, as Kafka's tools do; -X overrides them.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]

_MISSING = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    }
)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The cluster that a command talks to, and how: `add_command` expands it to one option per field."""

    bootstrap: Annotated[
        str,
        typer.Option(
            "--bootstrap-server",
            "-b",
            envvar="OTTLA_BOOTSTRAP",
            metavar="HOST:PORT",
            help="Connect to these brokers, separated by commas.",
        ),
    ] = LOCAL
    properties: Properties = None
    properties_file: PropertiesFile = None
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="Give up after this many seconds.")
    ] = SECONDS

    @contextmanager
    def connect(self) -> Iterator[Client]:
        """Connect for the length of a command; an error becomes one sentence and an exit code."""
        with cluster_errors():
            properties = client_properties(self.properties, self.properties_file)
            with Client(
                self.bootstrap,
                client_id=properties.get(CLIENT_ID, "ottla"),
                timeout=self.timeout,
                security=security_from_properties(properties),
            ) as client:
                yield client


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Turn an error of the client or the cluster into one sentence and an exit code."""
    try:
        yield
    except KafkaError as error:
        raise fail(str(error), code=_exit_code(error)) from error
    except ConnectionFailedError as error:
        raise fail(str(error), code=UNREACHABLE) from error
    except ValueError as error:
        raise fail(str(error), code=BAD_USAGE) from error


def for_each(items: Iterable[T], action: Callable[[T], None]) -> None:
    """Run an action for each item; print each error of the cluster, continue, and fail at the end if there was one."""
    code = 0
    for item in items:
        try:
            action(item)
        except KafkaError as error:
            code = code or _exit_code(error)
            fail(str(error))
    if code:
        raise typer.Exit(code)


def _exit_code(error: KafkaError) -> int:
    return NOT_FOUND if error.code in _MISSING else FAILED


def client_properties(
    words: Sequence[str] | None, file: str | None, known: Iterable[str] = PROPERTIES
) -> dict[str, str]:
    """Return the properties of a file and of the command line, which win.

    Raise ValueError for one on the command line that has no effect or is a secret. One in a file that has no effect is
    a warning, as in Kafka's tools: the file may be for other programs too.
    """
    usable = frozenset(known)
    overrides = pairs("-X", words)
    refuse_secrets(overrides)
    for name in overrides:
        if name not in usable:
            raise ValueError(f"-X {name}: this property has no effect here{_suggestion(name, usable)}")
    values: dict[str, str] = {}
    if file is not None:
        values = read_properties("--command-config", file)
        unused = sorted(set(values) - usable)
        if unused:
            warn(f"{file}: no effect here: {', '.join(unused)}")
    return values | overrides


def read_properties(option: str, file: str) -> dict[str, str]:
    """Return the properties of a file; raise ValueError if it cannot be read."""
    from ottla.cluster.properties_file import parse_properties

    try:
        with open(file, encoding="utf-8") as opened:
            return {entry.key: entry.value for entry in parse_properties(opened.read())}
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{option} {file}: {getattr(error, 'strerror', None) or error}") from error


def _suggestion(name: str, known: frozenset[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    if near:
        return f"; did you mean {near[0]}?"
    families = {
        known_name if known_name.count(".") == 1 else f"{known_name.partition('.')[0]}.*" for known_name in known
    }
    return f"; usable are {', '.join(sorted(families))}"
