"""`ottla analyze`: find what went wrong in event logs, captures, client logs, log directories and histories."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ottla.cli.options.commands import add_command, add_group
from ottla.cli.spark.session import quiet_session
from ottla.cli.terminal.output import console, print_json, until_pipe_closes, usage
from ottla.cli.terminal.progress import byte_progress, spark_progress
from ottla.quantities import parse_time

ENGINE_HELP = "Run in this process (here), in spark, or by the size of the inputs (auto)."
Paths = Annotated[
    list[Path], typer.Argument(metavar="INPUT...", help="Event logs, client logs, captures, Kafka log directories.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as one JSON document.")]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write the report as an HTML file too, or only its picture (.svg)."),
]
Sql = Annotated[
    str | None,
    typer.Option("--sql", metavar="QUERY", help="Run this query on the table `events` instead of the analysis."),
]
SqlOfTopics = Annotated[
    str | None,
    typer.Option("--sql", metavar="QUERY", help="Run this query on the tables `input` and `output` instead."),
]
SqlOfSides = Annotated[
    str | None, typer.Option("--sql", metavar="QUERY", help="Run this query on the tables `a` and `b` instead.")
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Run on this Spark master; by default on all cores of this machine."),
]
Engine = Annotated[str, typer.Option("--engine", metavar="ENGINE", help=ENGINE_HELP)]
Group = Annotated[str | None, typer.Option("--group", "-g", help="Analyze only this group.")]
FOUND = 1
UNANSWERED = 2
LIGHT = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
"""Settings of a JVM that only passes rows to Python: the simplest collector and compiler start fastest."""


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    analyze = add_group(app, "analyze")
    add_command(analyze, "dual-assign", dual_assign, "ottla analyze dual-assign events.jsonl client.log /var/lib/kafka")
    add_command(analyze, "txn-timeout", txn_timeout, "ottla analyze txn-timeout events.jsonl --html report.html")
    add_command(analyze, "client-trace", client_trace, "ottla analyze client-trace client.log -p 3 --topic orders")
    add_command(analyze, "rebalances", rebalances, "ottla analyze rebalances events.jsonl")
    add_command(analyze, "lag", lag, "ottla analyze lag /var/lib/kafka --max-lag 10000")
    add_command(analyze, "hot-partitions", hot_partitions, "ottla analyze hot-partitions /var/lib/kafka")
    add_command(
        analyze,
        "exactly-once",
        exactly_once,
        "ottla analyze exactly-once /var/lib/kafka --input orders --output bills",
    )
    add_command(analyze, "anomalies", anomalies, "ottla analyze anomalies history.jsonl")
    add_command(analyze, "diff", diff, "ottla analyze diff /var/lib/kafka#orders localhost:9092#orders")


def dual_assign(
    paths: Paths,
    group: Group = None,
    slack: Annotated[
        int,
        typer.Option(
            "--slack", metavar="MS", min=0, help="Ignore overlaps in client logs of up to this many milliseconds."
        ),
    ] = 0,
    as_json: AsJson = False,
    html: Html = None,
    sql: Sql = None,
    master: Master = None,
    engine: Engine = "auto",
) -> None:
    """Find partitions that two members of a group owned at once."""
    options = {"group": group, "slack_ms": slack}
    _run("dual-assign", paths, options, as_json=as_json, html=html, sql=sql, master=master, engine=engine)


def txn_timeout(
    paths: Paths,
    transactional_id: Annotated[
        str | None, typer.Option("--transactional-id", "-t", help="Analyze only this transactional id.")
    ] = None,
    now: Annotated[
        str | None,
        typer.Option(
            "--now",
            metavar="TIME",
            help="Evaluate as of this time (ISO 8601, or `now`) instead of the last event's.",
        ),
    ] = None,
    as_json: AsJson = False,
    html: Html = None,
    sql: Sql = None,
    master: Master = None,
    engine: Engine = "auto",
) -> None:
    """Find transactions that timed out or hang, and why."""
    options = {"transactional_id": transactional_id, "now_ms": _time(now, "--now")}
    _run("txn-timeout", paths, options, as_json=as_json, html=html, sql=sql, master=master, engine=engine)


def client_trace(
    paths: Paths,
    partition: Annotated[str, typer.Option("--partition", "-p", help="Trace this partition, such as 3 or orders-3.")],
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Analyze only this topic.")] = None,
    group: Group = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Skip events before this time (ISO 8601).")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Skip events after this time (ISO 8601).")
    ] = None,
    as_json: AsJson = False,
    html: Html = None,
    sql: Sql = None,
    master: Master = None,
    engine: Engine = "auto",
) -> None:
    """Trace the clients of a partition: fetches, commits, gaps."""
    named, number = _partition(partition)
    if named is not None and topic not in (None, named):
        raise usage(f"-p {partition} names another topic than --topic {topic}")
    since_ms, until_ms = _time(since, "--since"), _time(until, "--until")
    if since_ms is not None and until_ms is not None and since_ms > until_ms:
        raise usage(f"--since {since} is later than --until {until}")
    options = {"partition": number, "topic": named or topic, "group": group, "since_ms": since_ms, "until_ms": until_ms}
    _run("client-trace", paths, options, as_json=as_json, html=html, sql=sql, master=master, engine=engine)


def rebalances(
    paths: Paths,
    group: Group = None,
    as_json: AsJson = False,
    html: Html = None,
    sql: Sql = None,
    master: Master = None,
    engine: Engine = "auto",
) -> None:
    """Show how often, how long and why groups rebalance."""
    _run("rebalances", paths, {"group": group}, as_json=as_json, html=html, sql=sql, master=master, engine=engine)


def lag(
    paths: Paths,
    group: Group = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Analyze only this topic.")] = None,
    max_lag: Annotated[
        int | None, typer.Option("--max-lag", min=0, help="Report lag of more than this many records.")
    ] = None,
    as_json: AsJson = False,
    html: Html = None,
    sql: Sql = None,
    master: Master = None,
    engine: Engine = "auto",
) -> None:
    """Show lag per group and partition over time."""
    options = {"group": group, "topic": topic, "max_lag": max_lag}
    _run("lag", paths, options, as_json=as_json, html=html, sql=sql, master=master, engine=engine)


def hot_partitions(
    paths: Paths,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Analyze only this topic.")] = None,
    factor: Annotated[
        float, typer.Option("--factor", help="Report partitions with this many times the average.")
    ] = 2.0,
    internal: Annotated[bool, typer.Option("--internal", help="Include Kafka's internal topics.")] = False,
    as_json: AsJson = False,
    html: Html = None,
    sql: Sql = None,
    master: Master = None,
    engine: Engine = "auto",
) -> None:
    """Find partitions that get much more than their share."""
    if not factor > 1:
        raise usage(f"--factor must be more than 1, not {factor:g}")
    options = {"topic": topic, "factor": factor, "internal": internal or None}
    _run("hot-partitions", paths, options, as_json=as_json, html=html, sql=sql, master=master, engine=engine)


def anomalies(
    paths: Annotated[list[Path], typer.Argument(metavar="HISTORY...", help="Histories as JSON lines.")],
    everything_read: Annotated[
        bool, typer.Option("--everything-read", help="Report unread values as lost, because consumers read everything.")
    ] = False,
    as_json: AsJson = False,
    html: Html = None,
    sql: Sql = None,
    master: Master = None,
    engine: Engine = "auto",
) -> None:
    """Find reads and writes that no correct log allows."""
    options = {"everything_read": everything_read or None}
    _run("anomalies", paths, options, as_json=as_json, html=html, sql=sql, master=master, engine=engine)


def exactly_once(
    where: Annotated[str, typer.Argument(metavar="DIR|HOST:PORT", help="A log directory, or a cluster.")],
    source: Annotated[
        str,
        typer.Option("--input", metavar="TOPIC", help="Take the records of this topic, which the application read."),
    ],
    result: Annotated[
        str,
        typer.Option("--output", metavar="TOPIC", help="Check the records of this topic, which the application wrote."),
    ],
    by: Annotated[str, typer.Option("--by", help="Match records by key, value, or header:NAME.")] = "key",
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", help="Use the offsets of this group; by default of groups that commit in transactions."
        ),
    ] = None,
    as_json: AsJson = False,
    html: Html = None,
    sql: SqlOfTopics = None,
    master: Master = None,
) -> None:
    """Check that an output topic has each input record once."""
    from ottla.analysis.compare import exactly_once as audit
    from ottla.analysis.compare.topics import read_topic

    locations = _locations(f"{where}#{source}", f"{where}#{result}")
    with _spark(master) as spark, spark_progress(spark), _reading():
        if sql is not None:
            read_topic(spark, locations[0]).createOrReplaceTempView("input")
            read_topic(spark, locations[1]).createOrReplaceTempView("output")
            _query(spark, sql, as_json=as_json)
            return
        report = audit.run(spark, locations[0], locations[1], by, group)
    show(report, as_json=as_json, html=html)


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="DIR, DIR#topic, host:port or host:port#topic.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The same, for the other side.")],
    by: Annotated[
        str, typer.Option("--by", help="Match records by offset, or by position in the partition.")
    ] = "offset",
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", help="Ignore a field: key, value, headers or timestamp; repeatable.")
    ] = None,
    as_json: AsJson = False,
    html: Html = None,
    sql: SqlOfSides = None,
    master: Master = None,
) -> None:
    """Compare two topics or clusters record by record."""
    from ottla.analysis.compare import diff as comparison
    from ottla.analysis.compare.topics import read_topic

    locations = _locations(first, second)
    with _spark(master) as spark, spark_progress(spark), _reading():
        if sql is not None:
            read_topic(spark, locations[0]).createOrReplaceTempView("a")
            read_topic(spark, locations[1]).createOrReplaceTempView("b")
            _query(spark, sql, as_json=as_json)
            return
        report = comparison.run(spark, locations[0], locations[1], by, tuple(ignore or ()))
    show(report, as_json=as_json, html=html)


def _locations(*texts: str) -> list[Any]:
    from ottla.analysis.compare.topics import TopicLocation
    from ottla.analysis.inputs import InputError

    try:
        return [TopicLocation.parse(text) for text in texts]
    except InputError as error:
        raise usage(str(error)) from None


@contextmanager
def _reading() -> Iterator[None]:
    """Turn errors of Spark while it reads into one sentence."""
    from pyspark.errors import PySparkException

    from ottla.analysis.inputs import InputError

    try:
        yield
    except InputError as error:
        raise usage(str(error)) from None
    except PySparkException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = next((line for line in reversed(lines) if "Error: " in line), lines[0] if lines else "unknown")
        raise usage(f"Spark could not read the input: {reason}") from None


def _run(
    name: str,
    paths: list[Path],
    options: dict[str, Any],
    *,
    as_json: bool,
    html: Path | None,
    sql: str | None,
    master: str | None,
    engine: str,
) -> None:
    """Run an analysis of events, or a query over their table."""
    from ottla.analysis.analyses import ANALYSES
    from ottla.analysis.engine import SMALL, InputError, find_pieces, run_here, run_in_spark, total_size

    if engine not in ("auto", "here", "spark"):
        raise usage(f"--engine must be auto, here or spark, not {engine!r}")
    texts = [str(path) for path in paths]
    try:
        pieces = find_pieces(texts)
    except InputError as error:
        raise usage(str(error)) from None
    size = total_size(pieces)
    if sql is not None:
        with _spark(master) as spark:
            from ottla.analysis.spark_source import read_events

            read_events(spark, texts).createOrReplaceTempView("events")
            _query(spark, sql, as_json=as_json)
        return
    chosen = {key: value for key, value in options.items() if value is not None}
    if engine == "here" or (engine == "auto" and master is None and size <= SMALL):
        with byte_progress("reading", size) as advance:
            report = run_here(ANALYSES[name], pieces, chosen, advance)
    else:
        with _spark(master, LIGHT) as spark, spark_progress(spark), _reading():
            if name == "anomalies":
                from ottla.analysis.rules import anomalies as checker

                report = checker.run_in_spark(spark, texts, chosen)
            else:
                report = run_in_spark(ANALYSES[name], spark, texts, chosen)
    show(report, as_json=as_json, html=html)


def show(report: Any, *, as_json: bool, html: Path | None) -> None:
    """Print a report and write it to a file if requested; exit with 1 for findings, 2 if the input cannot answer."""
    from ottla.analysis.report.html import picture_file, to_html
    from ottla.analysis.report.text import print_report

    if html is not None:
        try:
            html.write_text(picture_file(report) if html.suffix == ".svg" else to_html(report), encoding="utf-8")
        except OSError as error:
            raise usage(f"{html} cannot be written: {error.strerror}") from None
    with until_pipe_closes():  # the exit code stays the report's
        if as_json:
            print_json(asdict(report))
        else:
            print_report(report, console())
    if html is not None and not as_json:
        typer.echo(f"written to {html}", err=True)
    if not report.conclusive:
        raise typer.Exit(UNANSWERED)
    if report.has_problem:
        raise typer.Exit(FOUND)


def _query(spark: Any, sql: str, *, as_json: bool) -> None:
    from pyspark.errors import PySparkException

    try:
        result = spark.sql(sql)
        rows = result.limit(10_000).collect()
    except PySparkException as error:
        raise usage(f"the query failed: {str(error).splitlines()[0]}") from None
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row.asDict(recursive=True), ensure_ascii=False, default=str))
        return
    from ottla.cli.terminal.output import print_table

    print_table(result.columns, [tuple(row) for row in rows])


@contextmanager
def _spark(master: str | None, settings: dict[str, str] | None = None) -> Iterator[Any]:
    """Start Spark for one command."""
    from ottla.spark import SparkSetupError

    try:
        spark = quiet_session("ottla analyze", master=master, config=settings or {})
    except SparkSetupError as error:
        raise usage(str(error)) from None
    spark.sparkContext.setLogLevel("ERROR")
    logging.getLogger("SQLQueryContextLogger").disabled = True  # it logs the JVM's stack for a syntax error
    yield spark


def _partition(text: str) -> tuple[str | None, int]:
    """Parse a partition: its number, or its name."""
    from ottla.analysis.event import split_partition

    partition = (None, int(text)) if text.isdecimal() else split_partition(text)
    if partition is None:
        raise usage(f"-p must be a partition such as 3 or orders-3, not {text!r}")
    return partition


def _time(text: str | None, option: str) -> int | None:
    """Return the milliseconds of a time option; None if it is not given."""
    try:
        return None if text is None else parse_time(text)
    except ValueError as error:
        raise usage(f"{option}: {error}") from None
