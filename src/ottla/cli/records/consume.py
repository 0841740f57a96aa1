"""`ottla consume`: print records of a topic, from any offset, in any form."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from ottla.cli.options.commands import add_command
from ottla.cli.options.connect import AsJson, ClusterOptions
from ottla.cli.schemas.values import FORM_HELP, REGISTRY_FORMS, RegistryDecoder, RegistryOptions
from ottla.cli.terminal.output import echo, plain_bytes, refuse_together, warn
from ottla.client import Client
from ottla.client.filters import expression_filter, grep_filter, key_filter
from ottla.client.formats import Form, escaped, pattern
from ottla.client.groups import commit, committed, describe_group
from ottla.client.reading import Bounds, Read, RecordReader, bounds, offsets_at, timestamp_type
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.quantities import format_count, parse_time

VALUE_LINE = r"%s\n"


class Isolation(StrEnum):
    """Kafka's isolation levels."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


@dataclass(frozen=True, slots=True)
class FilterOptions:
    """Filters of records, which must all match: `add_command` expands it to one option per field."""

    key: Annotated[
        str | None,
        typer.Option("--key", metavar="TEXT", help="Print only records with this key.", show_default=False),
    ] = None
    grep: Annotated[
        str | None,
        typer.Option(
            "--grep", metavar="REGEX", help="Print only records whose key, value or header matches.", show_default=False
        ),
    ] = None
    expression: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="EXPR",
            help="Print only records for which this is true, such as value.amount > 10 and key != 'x'. Keys, values "
            "and headers are decoded as JSON.",
            show_default=False,
        ),
    ] = None

    def build(self, key_form: Form | None) -> Callable[[Read], bool] | None:
        """Return a function that selects records; None if no filter is given."""
        filters = [
            *(() if self.key is None else (key_filter(self.key, key_form),)),
            *(() if self.grep is None else (grep_filter(self.grep),)),
            *(() if self.expression is None else (expression_filter(self.expression),)),
        ]
        return (lambda read: all(matches(read) for matches in filters)) if filters else None


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(
        app,
        "consume",
        consume,
        "ottla consume orders -e                  print all records, then stop",
        "ottla consume orders -o end              print new records until Ctrl-C",
        "ottla consume orders -o -10 -e           the last ten of each partition",
        "ottla consume orders -o s@-1h -o e@now   the last hour",
        "ottla consume orders -o s@2026-11-15T10:00:00Z -n 5",
        r"ottla consume orders -f '%p/%o %T %k: %s (%h)\n'",
        "ottla consume orders -e --json",
        "ottla consume orders -e --filter 'value.amount > 100'",
        "ottla consume orders -e --group backfill    continue where it ended",
        "ottla consume orders -e --value avro --registry http://localhost:8081",
    )


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.")],
    *,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition", "-p", metavar="N", help="Read only this partition; repeatable.", show_default=False
        ),
    ] = None,
    offset: Annotated[
        list[str] | None,
        typer.Option(
            "--offset",
            "-o",
            metavar="OFFSET",
            help="Start at beginning, end, an offset, -N (the last N records) or s@TIME; stop at e@TIME. A TIME is ISO "
            "8601, milliseconds since 1970, now, or -15m.",
            show_default="beginning",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", "-c", metavar="N", min=0, help="Stop after N records.", show_default=False),
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit", "-e", help="Stop at the end that the partitions have now.")
    ] = False,
    template: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help=r"Print each record in kcat's format: %s value, %S its length, %R its length as 4 bytes, %k key, %K "
            r"its length, %t topic, %p partition, %o offset, %T timestamp (ms), %h headers, %%; \n \t \r \0 \xNN.",
            show_default=VALUE_LINE,
        ),
    ] = None,
    key_delimiter: Annotated[
        str | None,
        typer.Option("-K", metavar="TEXT", help="Print the key and this text before the value.", show_default=False),
    ] = None,
    key_form: Annotated[
        Form | None,
        typer.Option("--key-form", metavar="FORM", help=f"Print keys in this form: {FORM_HELP}.", show_default="raw"),
    ] = None,
    value_form: Annotated[
        Form | None,
        typer.Option(
            "--value",
            "--value-form",
            metavar="FORM",
            help=f"Print values and headers in this form: {FORM_HELP}.",
            show_default="raw",
        ),
    ] = None,
    null: Annotated[
        str | None,
        typer.Option(
            "--null", "-Z", metavar="TEXT", help="Print this for a null key or value.", show_default="nothing"
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="NAME",
            help="Start at the committed offsets of this group and commit at the end. The group must have no members.",
            show_default=False,
        ),
    ] = None,
    isolation: Annotated[
        Isolation,
        typer.Option("--isolation-level", help="Hide or print records of open and aborted transactions."),
    ] = Isolation.READ_COMMITTED,
    check_crcs: Annotated[
        bool,
        typer.Option("--check-crcs/--no-check-crcs", help="Stop at a batch with a wrong CRC, or print its records."),
    ] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no notes on standard error.")] = False,
    as_json: AsJson = False,
    filters: FilterOptions,
    registry: RegistryOptions,
    cluster: ClusterOptions,
) -> None:
    """Read records of a topic.

    Joins no group, as kcat -C does. Without -e, -n or e@TIME it waits for new records until Ctrl-C.
    """
    if as_json:
        refuse_together("--json", ("-f", template is not None), ("-K", key_delimiter is not None))
        if filters.key is None:
            refuse_together("--json", ("--key-form", key_form not in (None, *REGISTRY_FORMS)))
        refuse_together("--json", ("--value", value_form not in (None, *REGISTRY_FORMS)))
        refuse_together("--json", ("-Z", null is not None))
    if template is not None:
        refuse_together("-f", ("-K", key_delimiter is not None))
    committed = isolation is Isolation.READ_COMMITTED
    printed = 0
    with cluster.connect() as client:
        if template is None:
            template = VALUE_LINE if key_delimiter is None else "%k" + key_delimiter.replace("%", "%%") + VALUE_LINE
        by_registry = [form in REGISTRY_FORMS for form in (key_form, value_form)]
        decoder = RegistryDecoder(registry, key=key_form, value=value_form) if any(by_registry) else None
        forms = [Form.RAW if form in REGISTRY_FORMS else form for form in (key_form, value_form)]
        write_text = pattern(template, forms[0] or Form.RAW, forms[1] or Form.RAW, escaped(null or ""))
        write = _json_writer(*by_registry) if as_json else write_text
        selects = filters.build(key_form)
        known = bounds(client, topic, _partitions(client, topic, partition), read_committed=committed)
        starts, until = _range(client, topic, known, offset or (), quiet=quiet)
        if group is not None:
            starts |= _committed_starts(client, group, topic, known)
        if exit_at_end and until is None:
            until = {index: bound.end for index, bound in known.items()}
        out = sys.stdout.buffer
        reader = RecordReader(
            client,
            topic,
            starts,
            until=until,
            read_committed=committed,
            check_crcs=check_crcs,
            before_fetch=out.flush,
        )
        try:
            for read in reader if count != 0 else ():
                shown = read if decoder is None else decoder.decode(read)
                if selects is not None and not selects(shown):
                    continue
                out.write(write(shown))
                printed += 1
                if printed == count:
                    break
        except KeyboardInterrupt:
            pass  # the documented way to end it
        except KafkaError as error:
            out.flush()
            if error.code is ErrorCode.CORRUPT_MESSAGE and check_crcs:
                raise KafkaError(error.code, f"{error.message}; --no-check-crcs prints it nonetheless") from error
            raise
        out.flush()
        if group is not None:
            commit(client, group, {(topic, index): position for index, position in reader.positions.items()})
    if not quiet and not as_json and sys.stderr.isatty():
        echo(format_count(printed, "record"), err=True)


def _committed_starts(client: Client, group: str, topic: str, known: dict[int, Bounds]) -> dict[int, int]:
    """Return the committed offsets of a group without members; one outside the log is moved into it."""
    try:
        description = describe_group(client, group)
    except KafkaError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return {}
    if description.members:
        raise KafkaError(
            ErrorCode.NON_EMPTY_GROUP,
            f"group {group} has {format_count(len(description.members), 'member')}; its offsets are theirs to commit",
        )
    starts = {}
    for (name, index), offset in committed(client, group).items():
        if name == topic and index in known:
            starts[index] = min(max(offset, known[index].start), known[index].end)
            if starts[index] != offset:
                warn(f"{topic}-{index}: offset {offset} of {group} is outside the log; starting at {starts[index]}")
    return starts


def _partitions(client: Client, topic: str, chosen: Sequence[int] | None) -> list[int]:
    info = client.topics([topic])[0]
    for index in chosen or ():
        client.leader(topic, index)  # raises an error that names the partitions that exist
    return sorted(set(chosen or info.partitions))


def _range(
    client: Client, topic: str, known: dict[int, Bounds], words: Sequence[str], *, quiet: bool
) -> tuple[dict[int, int], dict[int, int] | None]:
    """Return the offsets to start at, and those to stop at if a time to stop at is given."""
    stops = [word for word in words if word.startswith("e@")]
    begins = [word for word in words if not word.startswith("e@")]
    for options in (stops, begins):
        if len(options) > 1:
            raise ValueError(f"-o {options[0]} and -o {options[1]}: give one start and one e@TIME at most")
    until = None
    if stops:
        ends = offsets_at(client, topic, known, parse_time(stops[0][2:]))
        until = {index: min(ends[index], known[index].end) for index in known}
    return _starts(client, topic, known, begins[0] if begins else "beginning", quiet=quiet), until


def _starts(client: Client, topic: str, known: dict[int, Bounds], word: str, *, quiet: bool) -> dict[int, int]:
    if word in ("beginning", "earliest", "start"):
        return {index: bound.start for index, bound in known.items()}
    if word in ("end", "latest"):
        return {index: bound.end for index, bound in known.items()}
    if word.startswith("s@"):
        return offsets_at(client, topic, known, parse_time(word[2:]))
    if not word.removeprefix("-").isdigit():
        raise ValueError(f"--offset {word}: write beginning, end, an offset, -N, s@TIME or e@TIME")
    if word.startswith("-"):
        return {index: max(bound.end + int(word), bound.start) for index, bound in known.items()}
    # As a consumer that resets to the nearest offset: one outside the log is moved to its start or end.
    starts = {index: min(max(int(word), bound.start), bound.end) for index, bound in known.items()}
    for index, start in starts.items():
        if start != int(word) and not quiet:
            warn(f"{topic}-{index} has offsets {known[index].start} to {known[index].end - 1}; starting at {start}")
    return starts


def _json_writer(key_is_json: bool, value_is_json: bool) -> Callable[[Read], bytes]:
    """Return a function that writes a record as a line of JSON; decoded keys and values are part of it."""

    def write(read: Read) -> bytes:
        key, value = read.record.key, read.record.value
        row = _json_row(read)
        if key_is_json and key is not None:
            row["key"] = json.loads(key)
        if value_is_json and value is not None:
            row["value"] = json.loads(value)
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"

    return write


def _json_row(read: Read) -> dict[str, Any]:
    record = read.record
    return {
        "topic": read.topic,
        "partition": read.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": timestamp_type(read.batch),
        **plain_bytes("key", record.key),
        **plain_bytes("value", record.value),
        "headers": [{"name": name, **plain_bytes("value", data)} for name, data in record.headers],
    }
