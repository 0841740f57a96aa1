"""One Spark session for all tests of this folder: every module has `pytestmark = pytest.mark.xdist_group("spark")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

# Test data is small: few tasks, no web UI, and no state that grows with the number of tests.
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.ui.enabled": "false",
    "spark.sql.streaming.ui.enabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.driver.memory": "1g",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return a session on two cores with ottla's formats and a temporary warehouse."""
    from ottla.spark.session import SparkSetupError, session

    where: Path = tmp_path_factory.mktemp("spark")
    settings = SETTINGS | {
        "spark.sql.warehouse.dir": str(where / "warehouse"),
        "spark.local.dir": str(where / "local"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={where} -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    try:
        running = session("ottla-tests", master="local[2]", config=settings)
    except SparkSetupError as error:
        pytest.skip(str(error))
    running.sparkContext.setLogLevel("ERROR")
    yield running
    running.stop()
