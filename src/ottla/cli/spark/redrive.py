"""`ottla pipeline redrive`: send dead letters back to the topics they came from."""

from dataclasses import asdict
from typing import Annotated

import typer

from ottla.cli.options.connect import AsJson, ClusterOptions
from ottla.cli.terminal.output import echo, fail, plain_bytes, print_json, print_rows

_SHOWN = ("partition", "offset", "topic", "original_partition", "original_offset", "reason", "redrives")
COLUMNS = ("PARTITION", "OFFSET", "FROM", "AT", "REDRIVES", "REASON")


def redrive(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Dead-letter topic.")],
    *,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="TOPIC", help="Send to this topic, not to the one in the headers.", show_default=False
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Send at most N letters.", show_default=False)
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Keep the progress in this consumer group.",
            show_default="ottla-redrive-TOPIC",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the letters; send nothing.")] = False,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Send dead letters back to their topics, each once.

    Reads letters of expectations and of Kafka Connect, and removes the headers of the error. The next run continues
    after the last letter.
    """
    from ottla.spark.pipeline.redrive import RedriveError, default_group, letters
    from ottla.spark.pipeline.redrive import redrive as run

    chosen = group or default_group(topic)
    with cluster.connect() as client:
        if dry_run:
            waiting, _ = letters(client, topic, chosen)
            shown = [letter for _, letter in zip(range(limit or 1 << 62), waiting, strict=False)]
            print_rows(
                as_json,
                shown,
                COLUMNS,
                lambda letter: (
                    letter.partition,
                    letter.offset,
                    letter.topic,
                    f"{letter.original_partition} @ {letter.original_offset}",
                    letter.redrives,
                    letter.reason,
                ),
                json_of=lambda letter: {
                    **{
                        name: value for name, value in asdict(letter).items() if name not in ("key", "value", "headers")
                    },
                    **plain_bytes("key", letter.key),
                    **plain_bytes("value", letter.value),
                },
                right=("PARTITION", "OFFSET", "REDRIVES"),
            )
            return
        try:
            result = run(client, topic, group=chosen, to=to, limit=limit)
        except RedriveError as error:
            raise fail(str(error)) from error
    if as_json:
        print_json(asdict(result))
    elif not result.sent:
        echo(f"nothing to send: group {chosen} has read all of {topic}")
    else:
        sent = ", ".join(f"{count} to {target}" for target, count in sorted(result.sent.items()))
        echo(f"sent {sent}" + (f"; {result.remaining} letters remain" if result.remaining else ""))
