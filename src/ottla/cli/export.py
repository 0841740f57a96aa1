"""`ottla export`: a topic as a folder of Parquet, a Delta or an Iceberg table, brought up to date by each run."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ottla.cli.connect import client_properties
from ottla.cli.output import console, examples, fail, pairs, print_json, size, usage
from ottla.cli.spark_session import quiet_session

_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog=examples(
            "ottla export orders --to ./lake/orders --value json",
            "ottla export orders --to ./lake/orders --log-dir /var/lib/ottla --by hour",
            "ottla export orders --to s3a://lake/orders -b kafka:9092 --master spark://host:7077",
        )
    )(export)


def export(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The folder, or any path that Spark can write to.")],
    format_: Annotated[
        str, typer.Option("--format", help="parquet, delta or iceberg (on a Spark that it has a runtime for).")
    ] = "parquet",
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            "-b",
            envvar="OTTLA_BOOTSTRAP",
            metavar="HOST:PORT",
            help="Read from these brokers; localhost:9092 unless --log-dir is given.",
            show_default=False,
        ),
    ] = None,
    log_dir: Annotated[
        str | None,
        typer.Option("--log-dir", metavar="DIR", help="Read a log directory, with no broker.", show_default=False),
    ] = None,
    by: Annotated[str, typer.Option("--by", help="Folders by date, by hour, or none.")] = "date",
    value: Annotated[
        str, typer.Option("--value", help="Values are string, json, binary, avro or protobuf.")
    ] = "string",
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="FILE",
            help="json: Spark's schema or DDL; avro: .avsc; protobuf: a descriptor set.",
            show_default=False,
        ),
    ] = None,
    message: Annotated[
        str | None, typer.Option("--message", metavar="NAME", help="The Protobuf message.", show_default=False)
    ] = None,
    target_size: Annotated[
        str, typer.Option("--target-size", metavar="SIZE", help="About how large files get.")
    ] = "128m",
    starting: Annotated[
        str,
        typer.Option("--from", metavar="OFFSETS", help="The first run starts at earliest, latest or offsets in JSON."),
    ] = "earliest",
    uncommitted: Annotated[
        bool, typer.Option("--uncommitted", help="Take records of open and aborted transactions too.")
    ] = False,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Go on where records were deleted before they were exported.")
    ] = False,
    compact: Annotated[bool, typer.Option("--compact", help="Then merge small files of earlier runs.")] = False,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-X", metavar="KEY=VALUE", help="A client property; may be repeated."),
    ] = None,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="The Spark master; else all cores of this machine.")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; may be repeated.")
    ] = None,
    packages: Annotated[
        str | None, typer.Option("--packages", metavar="COORDINATES", help="Maven packages for Spark, such as Delta's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
) -> None:
    """Write what is new in a topic to a folder of Parquet, a Delta or an Iceberg table.

    Each run goes on where the last one ended; one that was interrupted leaves nothing behind. Exit codes: 0 done, 1
    failed, 2 wrong usage, 3 no broker answers, 4 no such topic.
    """
    from ottla.spark.export.files import ExportError
    from ottla.spark.export.job import ExportPlan
    from ottla.spark.export.job import export as run
    from ottla.spark.export.values import SchemaError, SchemaFileError
    from ottla.spark.options import OptionError
    from ottla.spark.reasons import reason
    from ottla.spark.session import SparkSetupError

    try:
        plan = ExportPlan(
            topic,
            to,
            bootstrap=None if log_dir else bootstrap or "localhost:9092",
            log_dir=log_dir,
            format=format_,
            by=by,
            value=value,
            schema_file=schema,
            message=message,
            target_bytes=_bytes(target_size),
            starting=starting,
            read_committed=not uncommitted,
            skip_lost=skip_lost,
            compact=compact,
            options={f"kafka.{name}": each for name, each in client_properties(properties, None).items()},
        )
        plan.check()
    except (ExportError, SchemaFileError, ValueError) as error:
        raise usage(str(error)) from error
    settings = _spark_settings(format_, to, conf, packages)
    _find(plan.bootstrap, topic, properties)
    try:
        spark = quiet_session("ottla export", master=master, config=settings)
    except SparkSetupError as error:
        raise fail(str(error)) from error
    except Exception as error:
        raise fail("Spark did not start; what it said is above") from error
    try:
        with _progress(spark, quiet=as_json) as step:
            result = run(spark, plan, step=step)
    except SchemaFileError as error:
        raise usage(str(error)) from error
    except (ExportError, SchemaError, OptionError) as error:
        raise fail(str(error)) from error
    except KeyboardInterrupt:
        raise fail("interrupted; run it again to go on, nothing is lost or doubled", code=130) from None
    except Exception as error:
        raise fail(reason(error)) from error
    finally:
        spark.stop()
    if as_json:
        print_json(asdict(result))
    else:
        _tell(result, topic, to)


def _spark_settings(format_: str, to: str, conf: list[str] | None, packages: str | None) -> dict[str, str]:
    """What the session needs for the format; what was given wins."""
    from ottla.spark.export.iceberg import iceberg_settings

    settings = {"spark.log.level": "ERROR"}
    if packages:
        settings["spark.jars.packages"] = packages
    if format_ == "delta":
        settings["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
        settings["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    if format_ == "iceberg":
        settings |= iceberg_settings(to)
    return settings | pairs("--conf", conf)


def _tell(result: Any, topic: str, to: str) -> None:
    """What a run did, in one line."""
    corrupt = f", {result.corrupt:,} could not be decoded (column corrupt_value)" if result.corrupt else ""
    merged = f"; {result.compacted} small files merged" if result.compacted else ""
    console().print(
        f"{result.rows:,} rows in {result.files} files ({size(result.bytes)}) added to {to}{corrupt}{merged}"
        if result.rows
        else f"nothing new in {topic}{merged}"
    )


def _find(bootstrap: str | None, topic: str, properties: list[str] | None) -> None:
    """Say at once, before Spark starts, that nobody answers or that there is no such topic."""
    if bootstrap is None:
        return
    from ottla.cli.connect import connected

    with connected(bootstrap, properties, None, 10.0) as client:
        client.topics([topic])


@contextmanager
def _progress(spark: Any, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A bar of Spark's tasks on standard error, while something runs."""
    import sys

    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    done = threading.Event()
    with Progress(
        TextColumn("{task.description:12}"),
        BarColumn(40),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bars:
        bar = bars.add_task("starting", total=None)

        def watch() -> None:
            tracker = spark.sparkContext.statusTracker()
            while not done.wait(0.2):
                stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
                known = [each for each in stages if each is not None]
                if known:
                    bars.update(
                        bar,
                        total=sum(each.numTasks for each in known),
                        completed=sum(each.numCompletedTasks for each in known),
                    )

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield lambda name: bars.update(bar, description=name)
        finally:
            done.set()
            watcher.join()


def _bytes(text: str) -> int:
    plain = text.strip().lower().removesuffix("b").removesuffix("i")
    factor = _UNITS.get(plain[-1:], 1)
    digits = plain[:-1] if factor > 1 else plain
    if not digits.isdigit():
        raise ValueError(f"--target-size {text}: write a number of bytes, such as 128m")
    return int(digits) * factor
