"""Example pipelines equal a plain Python computation when the driver is killed halfway."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.spark.pipeline.templates import make_pipeline
from ottla.testing.spark import spark_kafka, spark_kafka_session

if TYPE_CHECKING:
    from ottla.testing.spark import SparkKafka

__all__ = ["spark_kafka", "spark_kafka_session"]
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("spark")]
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"


@pytest.mark.parametrize("name", ["sessions", "enrichment", "changes", "typed"])
def test_example_equals_plain_python_after_kills(name: str, spark_kafka: SparkKafka) -> None:
    module = load(EXAMPLES / name)
    # As outside of our tests: time that has gone on ends sessions without another click.
    spark_kafka.spark.conf.set(NO_DATA, "true")
    tests = [test for key, test in vars(module).items() if key.startswith("test_")]
    assert tests
    try:
        for test in tests:
            test(spark_kafka)
    finally:
        spark_kafka.spark.conf.set(NO_DATA, "false")


@pytest.mark.parametrize("template", ["python", "join"])
def test_new_pipeline_passes_its_tests(template: str, spark_kafka: SparkKafka, tmp_path: Path) -> None:
    make_pipeline(tmp_path / template, template)
    tests = [test for key, test in vars(load(tmp_path / template)).items() if key.startswith("test_")]
    assert tests
    for test in tests:
        test(spark_kafka)
        spark_kafka.reset()


def load(folder: Path) -> Any:
    """Import an example's tests, which import `pipeline` from their own folder."""
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location(f"example_{folder.name}", folder / "test_pipeline.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("pipeline", None)
