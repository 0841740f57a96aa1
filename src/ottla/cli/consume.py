"""`ottla consume`: the records of a topic, from anywhere, in any form."""

import json
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from ottla.cli.connect import LOCAL, SECONDS, AsJson, Bootstrap, Properties, PropertiesFile, Timeout, connected
from ottla.cli.formats import Form, escaped, pattern
from ottla.cli.moments import moment
from ottla.cli.output import examples, plain_bytes, usage
from ottla.client import Client
from ottla.client.reading import Bounds, Read, RecordReader, bounds, offsets_at, timestamp_type
from ottla.protocol.errors import ErrorCode, KafkaError

EXAMPLES = examples(
    "ottla consume orders -e                    all of it, then stop",
    "ottla consume orders -o end                what comes from now on",
    "ottla consume orders -o -10 -e             the last ten of each partition",
    "ottla consume orders -o s@-1h -o e@now     the last hour (or 2026-11-15T10:00:00Z, or milliseconds)",
    r"ottla consume orders -f '%p/%o %T %k: %s (%h)\n'",
    "ottla consume orders -e --json",
)


class Isolation(StrEnum):
    """Whether records of transactions that are open or were aborted are shown."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("consume", epilog=EXAMPLES)(consume)


def consume(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", help="Only these; may be repeated.", show_default=False)
    ] = None,
    offset: Annotated[
        list[str] | None,
        typer.Option(
            "--offset",
            "-o",
            help="Where to begin: beginning, end, an offset, -N for the last N, s@TIME; e@TIME is where to stop.",
            show_default="beginning",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", "-c", help="Stop after so many records.", show_default=False)
    ] = None,
    exit_at_end: Annotated[bool, typer.Option("--exit", "-e", help="Stop at the end as it is now.")] = False,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            help=r"kcat's pattern: %s value, %S its length, %R the same in binary, %k key, %K its length, %t topic, "
            r"%p partition, %o offset, %T timestamp, %h headers, %%; \n \t \r \0 \xNN.",
            show_default=r"%s\n",
        ),
    ] = None,
    key_delimiter: Annotated[
        str | None, typer.Option("-K", help="Show keys too, and this between key and value.", show_default=False)
    ] = None,
    key_form: Annotated[Form, typer.Option("--key-form", help="How keys are shown.")] = Form.RAW,
    value_form: Annotated[Form, typer.Option("--value-form", help="How values and headers are shown.")] = Form.RAW,
    null: Annotated[str, typer.Option("--null", "-Z", help="What is shown where there is no key or value.")] = "",
    isolation: Annotated[
        Isolation, typer.Option("--isolation-level", help="Whose records are shown.")
    ] = Isolation.READ_COMMITTED,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on standard error.")] = False,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Read records of a topic, without a group; as kcat -C does."""
    if as_json and (form is not None or key_delimiter is not None):
        raise usage("--json and -f or -K cannot be used together")
    committed = isolation is Isolation.READ_COMMITTED
    seen = 0
    with connected(bootstrap, properties, command_config, timeout) as client:
        default = r"%s\n" if key_delimiter is None else "%k" + key_delimiter.replace("%", "%%") + r"%s\n"
        write = pattern(form if form is not None else default, key_form, value_form, escaped(null))
        partitions = _partitions(client, topic, partition)
        known = bounds(client, topic, partitions, read_committed=committed)
        starts, until = _range(client, topic, known, offset or [])
        if exit_at_end or until is not None:
            until = until or {each: found.end for each, found in known.items()}
        out = sys.stdout.buffer
        reader = RecordReader(client, topic, starts, until=until, read_committed=committed, before_fetch=out.flush)
        try:
            for read in reader if count is None or count > 0 else ():
                out.write(_line(read) if as_json else write(read))
                seen += 1
                if seen == count:
                    break
            out.flush()
        except KeyboardInterrupt:
            out.flush()
        except BrokenPipeError:  # whoever read it has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
    if not quiet and not as_json and sys.stderr.isatty():
        typer.echo(f"{seen} records", err=True)


def _partitions(client: Client, topic: str, wanted: Sequence[int] | None) -> list[int]:
    info = client.topics([topic])[0]
    for each in wanted or ():
        if each not in info.partitions:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{topic} has partitions 0 to {len(info.partitions) - 1}, not {each}",
            )
    return sorted(wanted or info.partitions)


def _range(
    client: Client, topic: str, known: dict[int, Bounds], words: Sequence[str]
) -> tuple[dict[int, int], dict[int, int] | None]:
    """Where to begin and, if a time to stop at is given, where to end."""
    starts = {each: found.start for each, found in known.items()}
    until = None
    for word in words:
        if word.startswith("e@"):
            at = offsets_at(client, topic, known, moment(word[2:]))
            until = {each: min(at[each], known[each].end) for each in known}
        else:
            starts = _starts(client, topic, known, word)
    return starts, until


def _starts(client: Client, topic: str, known: dict[int, Bounds], word: str) -> dict[int, int]:
    if word in ("beginning", "earliest", "start"):
        return {each: found.start for each, found in known.items()}
    if word in ("end", "latest"):
        return {each: found.end for each, found in known.items()}
    if word.startswith("s@"):
        return offsets_at(client, topic, known, moment(word[2:]))
    if word.removeprefix("-").isdigit():
        if word.startswith("-"):
            return {each: max(found.end + int(word), found.start) for each, found in known.items()}
        # As a consumer that resets to the nearest end: an offset outside is moved inside.
        return {each: min(max(int(word), found.start), found.end) for each, found in known.items()}
    raise ValueError(f"--offset {word}: write beginning, end, an offset, -N, s@TIME or e@TIME")


def _line(read: Read) -> bytes:
    record = read.record
    row: dict[str, Any] = {
        "topic": read.topic,
        "partition": read.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": timestamp_type(read.batch),
        **plain_bytes("key", record.key),
        **plain_bytes("value", record.value),
        "headers": [{"name": name, **plain_bytes("value", data)} for name, data in record.headers],
    }
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"
