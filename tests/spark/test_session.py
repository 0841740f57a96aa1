"""The session: the interpreter of workers, and where they import pyspark from."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from ottla.spark.session import (
    _choose_cluster_interpreter,
    _choose_local_interpreter,
    _cores,
    session,
    shuffle_settings,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "OTTLA_SPARK_PYTHON", "SPARK_HOME", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    yield monkeypatch
    os.environ.clear()
    os.environ.update(before)


def test_local_workers_use_installed_pyspark(
    spark: SparkSession,
) -> None:
    def worker_paths(_: object) -> list[tuple[str, str, list[str]]]:
        import pyspark

        return [(sys.executable, str(pyspark.__file__), [path for path in sys.path if path.endswith(".zip")])]

    ((executable, pyspark, zips),) = spark.sparkContext.parallelize([0], 1).mapPartitions(worker_paths).collect()
    assert executable == sys.executable
    assert ".zip" not in pyspark
    assert not [path for path in zips if "pyspark" in path]


def test_configured_python_is_kept(clean: pytest.MonkeyPatch) -> None:
    _choose_local_interpreter()
    assert os.environ["PYSPARK_PYTHON"].endswith("worker_python")
    assert os.environ["OTTLA_SPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    clean.setenv("PYSPARK_PYTHON", "/usr/bin/another")
    for choose in (_choose_local_interpreter, _choose_cluster_interpreter):
        choose()
        assert os.environ["PYSPARK_PYTHON"] == "/usr/bin/another"


def test_cluster_runs_drivers_version_of_python_by_name(clean: pytest.MonkeyPatch) -> None:
    _choose_cluster_interpreter()
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    assert os.environ["PYSPARK_PYTHON"] == name
    assert shutil.which(name) == os.path.join(os.path.dirname(sys.executable), name)


@pytest.mark.parametrize(("master", "cores"), [("local", 1), ("local[3]", 3), ("local[4,2]", 4)])
def test_shuffle_partitions_follow_the_cores(master: str, cores: int) -> None:
    assert _cores(master) == cores
    assert shuffle_settings(_cores(master))["spark.sql.shuffle.partitions"] == str(max(2, cores))


def test_master_with_remote_is_refused() -> None:
    with pytest.raises(ValueError, match="master and remote cannot be used together"):
        session(master="local[1]", remote="sc://localhost")
