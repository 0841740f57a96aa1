"""`ottla export`: append new records of a topic to a folder of Parquet, a Delta or an Iceberg table."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from ottla.cli.options.commands import add_command
from ottla.cli.options.connect import LOCAL, PROPERTIES, Properties, PropertiesFile, client_properties, cluster_errors
from ottla.cli.schemas.values import RegistryOptions
from ottla.cli.spark.session import SparkOptions
from ottla.cli.terminal.output import console, fail, print_json, usage
from ottla.cli.terminal.progress import spark_progress
from ottla.quantities import format_size, parse_size

INTERRUPTED = 130
FIND_SECONDS = 10.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(
        app,
        "export",
        export,
        "ottla export orders --to ./lake/orders --value json",
        "ottla export orders --to lake --value registry --registry http://host:8081",
        "ottla export orders --to ./lake/orders --log-dir ./data --by hour",
        "ottla export orders --to s3a://lake/orders -b kafka:9092",
        "ottla export orders --to ./lake --master spark://host:7077",
    )


def export(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to export.")],
    *,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="Write to this folder, or to any path of Spark's.")],
    table_format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="Write parquet, delta or iceberg.")
    ] = "parquet",
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            "-b",
            envvar="OTTLA_BOOTSTRAP",
            metavar="HOST:PORT",
            help="Read from these brokers, separated by commas.",
            show_default=f"{LOCAL} unless --log-dir is given",
        ),
    ] = None,
    log_dir: Annotated[
        str | None,
        typer.Option(
            "--log-dir", metavar="DIR", help="Read a Kafka log directory without a broker.", show_default=False
        ),
    ] = None,
    by: Annotated[
        str, typer.Option("--by", metavar="UNIT", help="Partition files by date, by hour, or none.")
    ] = "date",
    value: Annotated[
        str,
        typer.Option(
            "--value", metavar="TYPE", help="Decode values as string, json, binary, avro, protobuf or registry."
        ),
    ] = "string",
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="FILE",
            help="Decode values with this schema: Spark's JSON or DDL for json, .avsc for avro, a descriptor set for "
            "protobuf.",
            show_default=False,
        ),
    ] = None,
    message: Annotated[
        str | None,
        typer.Option(
            "--message", metavar="NAME", help="Decode values as this protobuf message (full name).", show_default=False
        ),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject",
            metavar="NAME",
            help="Read values as the latest schema of this subject.",
            show_default="TOPIC-value",
        ),
    ] = None,
    target_size: Annotated[
        str, typer.Option("--target-size", metavar="SIZE", help="Write files of about this size: 64k, 128m, 1g.")
    ] = "128m",
    starting: Annotated[
        str,
        typer.Option("--from", metavar="OFFSETS", help="Start the first run at earliest, latest, or offsets in JSON."),
    ] = "earliest",
    uncommitted: Annotated[
        bool, typer.Option("--uncommitted", help="Export records of open and aborted transactions too.")
    ] = False,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Continue if records were deleted before they were exported.")
    ] = False,
    compact: Annotated[bool, typer.Option("--compact", help="Merge small files of earlier runs afterwards.")] = False,
    packages: Annotated[
        str | None,
        typer.Option(
            "--packages", metavar="COORDINATES", help="Load Maven packages, such as Delta's.", show_default=False
        ),
    ] = None,
    properties: Properties = None,
    properties_file: PropertiesFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
    registry: RegistryOptions,
    spark: SparkOptions,
) -> None:
    """Export a topic to Parquet, Delta or Iceberg with Spark.

    Each run continues where the last one ended; an interrupted run leaves nothing behind. Exit codes: 0 done, 1 failed,
    2 wrong usage, 3 no broker answers, 4 no such topic.
    """
    from ottla.spark.export.files import ExportError
    from ottla.spark.export.job import ExportPlan
    from ottla.spark.export.job import export as run
    from ottla.spark.export.values import SchemaError, SchemaFileError
    from ottla.spark.network.options import KNOWN
    from ottla.spark.options import OptionError
    from ottla.spark.reasons import reason

    if log_dir is not None and (properties or properties_file):
        raise usage("-X and --command-config cannot be used with --log-dir: there is no broker to connect to")
    if message is not None and value != "protobuf":
        raise usage("--message requires --value protobuf")
    reader_properties = {name.removeprefix("kafka.") for name in KNOWN if name.startswith("kafka.")}
    try:
        client = client_properties(
            properties, properties_file, (PROPERTIES | reader_properties) - {"bootstrap.servers"}
        )
        plan = ExportPlan(
            topic,
            to,
            bootstrap=None if log_dir else bootstrap or LOCAL,
            log_dir=log_dir,
            format=table_format,
            by=by,
            value=value,
            schema_file=schema,
            message=message,
            target_bytes=parse_size(target_size),
            starting=starting,
            read_committed=not uncommitted,
            skip_lost=skip_lost,
            compact=compact,
            registry=registry.url,
            registry_ca=registry.ca,
            subject=subject,
            options={f"kafka.{name}": text for name, text in client.items()},
        )
        plan.check()
    except (ExportError, SchemaFileError, ValueError) as error:
        raise usage(str(error)) from error
    if plan.bootstrap is not None:
        _check_topic(plan.bootstrap, topic, client)
    with spark.session("ottla export", _spark_defaults(table_format, to, packages)) as session:
        try:
            with spark_progress(session, quiet=as_json) as step:
                result = run(session, plan, step=step)
        except SchemaFileError as error:
            raise usage(str(error)) from error
        except (ExportError, SchemaError, OptionError) as error:
            raise fail(str(error)) from error
        except KeyboardInterrupt:
            raise fail("interrupted; the next run continues, nothing is lost or duplicated", code=INTERRUPTED) from None
        except Exception as error:
            raise fail(f"export of {topic} to {to} failed: {reason(error)}") from error
    if as_json:
        print_json(asdict(result))
    else:
        _print_result(result, topic, to)


def _spark_defaults(table_format: str, to: str, packages: str | None) -> dict[str, str]:
    """Return the Spark properties that a table format needs."""
    from ottla.spark.export.iceberg import iceberg_settings

    defaults = {"spark.log.level": "ERROR"}
    if packages:
        defaults["spark.jars.packages"] = packages
    if table_format == "delta":
        defaults["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
        defaults["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    if table_format == "iceberg":
        defaults |= iceberg_settings(to)
    return defaults


def _print_result(result: Any, topic: str, to: str) -> None:
    corrupt = f", {result.corrupt:,} could not be decoded (column corrupt_value)" if result.corrupt else ""
    merged = f"; {result.compacted} small files merged" if result.compacted else ""
    console().print(
        f"{result.rows:,} rows in {result.files} files ({format_size(result.bytes)}) added to {to}{corrupt}{merged}"
        if result.rows
        else f"nothing new in {topic}{merged}"
    )


def _check_topic(bootstrap: str, topic: str, properties: dict[str, str]) -> None:
    """Fail before Spark starts if no broker answers or the topic does not exist."""
    from ottla.client import Client
    from ottla.client.auth import security_from_properties

    with (
        cluster_errors(),
        Client(bootstrap, timeout=FIND_SECONDS, security=security_from_properties(properties)) as client,
    ):
        client.topics([topic])
