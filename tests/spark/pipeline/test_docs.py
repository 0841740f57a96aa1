"""The snippets of docs/pipelines.md run in order, and the commands that it names exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

from ottla.cli import build
from ottla.spark.pipeline.folder import PipelineError, find_pipeline, read_status, write_status
from ottla.spark.pipeline.progress import lag, query_progress, source_lags
from ottla.spark.pipeline.templates import TEMPLATES, make_pipeline
from ottla.testing.spark import spark_kafka, spark_kafka_session

if TYPE_CHECKING:
    from ottla.testing.spark import SparkKafka

__all__ = ["spark_kafka", "spark_kafka_session"]
pytestmark = [pytest.mark.xdist_group("spark")]
PAGE = Path(__file__).parents[3] / "docs" / "pipelines.md"


@pytest.mark.usefixtures("spark")
def test_page_snippets_run(spark_kafka: SparkKafka, tmp_path: Path) -> None:
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(snippets) >= 6
    spark_kafka.create_topic("orders", 2)
    spark_kafka.create_topic("orders-loud", 1)
    spark_kafka.create_topic("counts", 1)
    names = {"bootstrap": spark_kafka.bootstrap, "folder": str(tmp_path)}
    for snippet in snippets:
        exec(compile(snippet, str(PAGE), "exec"), names)
    spark_kafka.reset()
    names["test_orders_are_counted"](spark_kafka)  # type: ignore[operator]


def test_page_names_existing_commands_and_options() -> None:
    commands = re.findall(r"^ottla (export|pipeline [a-z-]+)(.*)$", PAGE.read_text(), re.MULTILINE)
    assert {name for name, _ in commands} == {
        "export",
        *(f"pipeline {command}" for command in ("init", "run", "dry-run", "test", "status", "backfill", "redrive")),
    }
    root: Any = typer.main.get_command(build())
    pipeline = root.get_command(None, "pipeline")
    for name, rest in commands:
        command = root.get_command(None, "export") if name == "export" else pipeline.commands[name.split()[1]]
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r" (--[a-z-]+)", rest.partition("#")[0])) <= known, name


def test_pipeline_is_created_found_and_reports_status(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="there is no folder"):
        find_pipeline(tmp_path / "nothing")
    with pytest.raises(PipelineError, match=r"has neither spark-pipeline\.yml nor pipeline\.py"):
        find_pipeline(tmp_path)
    for template in TEMPLATES:
        declarative = template in ("sql", "declarative")
        folder = tmp_path / f"shop-{template}"
        for made in make_pipeline(folder, template):
            if made.suffix == ".py":
                compile(made.read_text(), str(made), "exec")
        pipeline = find_pipeline(folder)
        assert pipeline.declarative is declarative
        assert read_status(pipeline)["state"] == "never run"
        with pytest.raises(PipelineError, match="is not empty"):
            make_pipeline(folder, template)
        pipeline.state.mkdir()
        write_status(pipeline.status_file, {"state": "running", "pid": 2**22 + 1, "queries": []})
        assert read_status(pipeline)["state"] == "died"


def test_progress_has_rows_per_second_and_lag_per_source() -> None:
    source = {
        "description": "ottla",
        "numInputRows": 9,
        "inputRowsPerSecond": 3.04,
        "endOffset": {"orders": {"0": 9}},
        "latestOffset": {"orders": {"0": 12, "1": 1}, "": {"orders": "an id"}},
    }
    shown = query_progress({"batchId": 4, "processedRowsPerSecond": 1.0, "sources": [source]}, "q", True)
    assert shown["sources"] == [{"source": "orders", "rows": 9, "rows_per_second": 3.0, "lag": 4}]
    assert source_lags({"sources": [source, {"description": "rate", "endOffset": 5}]}) == {"orders": 4}
    assert source_lags(None) == {}
    assert query_progress(None, "q", True)["batch"] is None
    assert lag(None, 5) is None
    assert lag("not json", "not json either") is None
    other = query_progress({"batchId": 4, "sources": [{"description": "rate", "endOffset": 5}]}, "q", True)
    assert [(source["source"], source["lag"]) for source in other["sources"]] == [("rate", None)]
