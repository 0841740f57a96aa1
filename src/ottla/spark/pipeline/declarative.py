"""Run a Spark Declarative Pipelines spec with ottla's formats, and work around three faults of Spark 4.2.

- `spark-pipelines` opens an unauthenticated Connect server on all interfaces: here it listens on loopback, on a free
  port, and requires a token.
- With the default catalog a second run fails (LOCATION_ALREADY_EXISTS): here the catalog is Hive's, in `.ottla`.
- With a Python source the client of 4.2 and 4.3 takes a progress message (`__python_accumulator__`) for an unknown
  response and fails although the data is right: here that message is dropped.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.pipeline.folder import BOOTSTRAP, STATE, PipelineError, begin_status, topic_names, write_status
from ottla.spark.pipeline.locate import line_in_sql, with_location
from ottla.spark.reasons import reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"
_SERVICE: Final = "org.apache.spark.sql.connect.service.SparkConnectService$"


def server_settings(state: Path, token: str) -> dict[str, str]:
    """Return the settings of the Connect server."""
    metastore = state / "metastore"
    return {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.authenticate.token": token,
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(state / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={metastore};create=true",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={state}",
    }


def main(file: str, settings: dict[str, Any]) -> int:
    """Run the spec and return the exit code."""
    path = Path(file)
    state = path.parent / STATE
    status = begin_status(state)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # handle as SIGINT
    try:
        _run(path, state, settings, status)
    except KeyboardInterrupt:
        write_status(state / "status.json", {**status, "state": "stopped", "ended": time.time()})
        return 0
    except BaseException as error:
        status |= {"state": "failed", "problem": with_location(error, path.parent), "ended": time.time()}
        write_status(state / "status.json", status)
        raise
    status |= {"state": "finished", "ended": time.time()}
    write_status(state / "status.json", status)
    return 0


def _run(path: Path, state: Path, settings: dict[str, Any], status: dict[str, Any]) -> None:
    from ottla.spark.remote import register_formats
    from ottla.spark.session import session

    try:
        from pyspark.pipelines import cli, spark_connect_pipeline
        from pyspark.pipelines.graph_element_registry import graph_element_registration_context
        from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    except ImportError as error:
        raise PipelineError(
            f"Declarative Pipelines need pyspark 4.1 or newer with its extras: pip install 'ottla[spark]' ({error})"
        ) from error
    token = secrets.token_hex(16)
    os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = token
    spec = cli.load_pipeline_spec(path)
    server = session(
        path.parent.name,
        master=settings["master"],
        config={**server_settings(state, token), **spec.configuration, **settings["config"]},
    )
    server.sparkContext.setLogLevel("WARN")
    port = getattr(getattr(server.sparkContext._jvm, _SERVICE), "MODULE$").localPort()
    client = connect(port, token)
    # From here on, SparkSession.active() and pyspark.sql use Connect.
    os.environ[_MODE] = "1"
    try:
        register_formats(client)
        graph = spark_connect_pipeline.create_dataflow_graph(
            client, default_catalog=spec.catalog, default_database=spec.database, sql_conf=spec.configuration
        )
        registry = SparkConnectGraphElementRegistry(client, graph)
        topics = topic_names(path.parent / "topics.txt")
        with graph_element_registration_context(registry):
            add_topics(client, topics, _sql_text(path.parent))
        registry.register_sql = naming_file(registry.register_sql)
        cli.register_definitions(path, registry, spec, client, graph)
        status["state"] = "running"
        write_status(state / "status.json", status)
        events = spark_connect_pipeline.start_run(
            client,
            graph,
            full_refresh=[],
            full_refresh_all=settings["full_refresh"],
            refresh=[],
            dry=settings["dry"],
            storage=spec.storage,
        )
        for event in _event_messages(events):
            print(event, flush=True)
            status.setdefault("events", []).append(event)
            write_status(state / "status.json", status)
    finally:
        del os.environ[_MODE]
        client.stop()
        server.stop()


def add_topics(client: Any, topics: list[str], sql: str) -> None:
    """Add what pipelines in SQL need to read and write topics, which Spark's SQL cannot name.

    Each topic gets a streaming view `topic_<name>`. A topic for which the SQL text creates a view `to_<name>` gets a
    sink, and a flow that writes the rows of that view to it.
    """
    from pyspark import pipelines as dp

    brokers = {"kafka.bootstrap.servers": os.environ[BOOTSTRAP]}

    def add(topic: str) -> None:
        name = re.sub(r"\W", "_", topic)

        def records() -> Any:
            reader = client.readStream.format("ottla").options(**brokers).option("subscribe", topic)
            reader = reader.option("startingOffsets", "earliest").option("kafka.isolation.level", "read_committed")
            return reader.load()

        dp.temporary_view(name=f"topic_{name}")(records)
        if re.search(rf"\bVIEW\s+`?to_{name}\b", sql, re.IGNORECASE):
            dp.create_sink(f"sink_{name}", "ottla", {**brokers, "topic": topic})
            rows = lambda: client.readStream.table(f"to_{name}")  # noqa: E731 - a flow takes its name from a def
            dp.append_flow(target=f"sink_{name}", name=f"write_{name}")(rows)

    for topic in topics:
        add(topic)


def _sql_text(folder: Path) -> str:
    return "\n".join(file.read_text() for file in sorted(folder.rglob("*.sql")) if STATE not in file.parts)


def naming_file(register_sql: Callable[[str, Path], None]) -> Callable[[str, Path], None]:
    """Return a function that registers an SQL file and names file and line of an error in it."""

    def register(sql: str, file: Path) -> None:
        try:
            register_sql(sql, file)
        except Exception as error:
            line = line_in_sql(str(error))
            raise PipelineError(f"{file}{'' if line is None else f':{line}'}: {reason(error)}") from error

    return register


def connect(port: int, token: str) -> Any:
    """Return a Connect session to the server in this process."""
    from pyspark.sql.connect.session import SparkSession

    from ottla.spark.remote import ignore_accumulators

    session = SparkSession.builder.remote(f"sc://localhost:{port}/;token={token}").create()
    ignore_accumulators(session)
    return session


def _event_messages(results: Iterator[dict[str, Any]]) -> Iterator[str]:
    for result in results:
        if "pipeline_event_result" in result:
            yield str(result["pipeline_event_result"].event.message)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
