"""Create a Spark session with ottla's formats, or raise one sentence about what is missing.

The only module that checks pyspark's version; `java` finds the Java.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Final

from ottla.spark.java import find_java

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

OLDEST_SPARK: Final = (4, 1)  # no streams from Python sources; reads, writes and exports work
FIRST_UNKNOWN_SPARK: Final = (5, 0)
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"


class SparkSetupError(RuntimeError):
    """Spark cannot start here; the message says what to install."""


def check_setup() -> None:
    """Raise `SparkSetupError` unless pyspark and Java are installed in versions that work; select the Java."""
    check_pyspark()
    java, rejected = find_java()
    if java is None:
        raise SparkSetupError(
            f"Spark needs Java 17 or newer, and {', '.join(rejected)}: pip install 'ottla[spark]' brings one"
            + ("" if os.name == "posix" else " on Linux and macOS; install Java 17 or 21 and set JAVA_HOME")
        )
    java.select()


def check_pyspark() -> None:
    """Raise `SparkSetupError` unless pyspark is installed in a version that works."""
    try:
        import pyspark
    except ImportError:
        raise SparkSetupError("pyspark is not installed: pip install 'ottla[spark]'") from None
    version = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])
    if not OLDEST_SPARK <= version < FIRST_UNKNOWN_SPARK:
        raise SparkSetupError(
            f"pyspark {pyspark.__version__} is installed and ottla.spark needs 4.2 or a later 4.x: "
            f"pip install 'pyspark==4.2.0' (4.1 does without streams)"
        )


def session(
    app_name: str = "ottla",
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session with ottla's formats, on all cores of this machine unless a master or a remote is given.

    Executors of a cluster (`master="spark://..."`) get ottla from the driver. `remote="sc://..."` connects to a Spark
    Connect server. Settings in `config` override those made here.
    """
    if remote is not None:
        if master is not None:
            raise ValueError("master and remote cannot be used together: a Connect server has its own master")
        from ottla.spark.remote import connect

        return connect(remote, app_name, config or {})
    check_setup()
    from pyspark.sql import SparkSession

    config = dict(config or {})
    chosen = master or os.environ.get("SPARK_MASTER") or config.get("spark.master") or "local[*]"
    local = is_local(chosen)
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # The time a Python worker has to authenticate; the default of 15 s is too short on a busy machine.
        "spark.python.authenticate.socketTimeout": "120s",
    }
    if local:
        _choose_local_interpreter()
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # A session that runs already keeps its own number.
        if SHUFFLE_PARTITIONS not in config and SparkSession.getActiveSession() is None:
            settings |= shuffle_settings(_cores(chosen))
    elif "spark.pyspark.python" not in config:
        _choose_cluster_interpreter()
    builder = SparkSession.builder.appName(app_name).master(chosen)
    for name, value in (settings | config).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if not local:
        _prepare_cluster(spark, config)
    register(spark)
    return spark


def is_local(master: str) -> bool:
    """Return whether tasks of a master run in the driver's process.

    >>> is_local("local[*]"), is_local("local-cluster[2,1,1024]"), is_local("spark://host:7077")
    (True, False, False)
    """
    return master == "local" or master.startswith("local[")


def shuffle_settings(cores: int) -> dict[str, str]:
    """Return the number of shuffle partitions for a number of cores.

    Streams keep one state store for each shuffle partition and commit all of them in every batch, so that Spark's 200
    cost minutes on a small machine. Batch queries start with 200, which Spark merges by their size.
    """
    return {
        SHUFFLE_PARTITIONS: str(max(2, cores)),
        "spark.sql.adaptive.coalescePartitions.initialPartitionNum": str(max(200, cores)),
    }


def _cores(master: str) -> int:
    """Return the number of cores of a local master."""
    count = re.search(r"\[(\d+|\*)", master)
    if count is None:
        return 1
    return int(count[1]) if count[1] != "*" else os.cpu_count() or 1


def _prepare_cluster(spark: SparkSession, config: Mapping[str, str]) -> None:
    """Ship ottla to the executors, and set the shuffle partitions from the number of their cores."""
    from ottla.spark.shipping import SHIP, ExecutorError, ship

    mode = spark.conf.get(SHIP, "auto")
    if mode not in ("auto", "false"):
        raise SparkSetupError(f"{SHIP} must be auto or false, not {mode!r}")
    if mode == "auto":
        try:
            ship(spark)
        except ExecutorError as error:
            spark.stop()
            raise SparkSetupError(str(error)) from error
    if SHUFFLE_PARTITIONS not in config and spark.sparkContext.getConf().get(SHUFFLE_PARTITIONS) is None:
        for name, value in shuffle_settings(2 * spark.sparkContext.defaultParallelism).items():
            spark.conf.set(name, value)


def _choose_local_interpreter() -> None:
    """Make workers run this interpreter; by default they run the first python3 on PATH, without ottla.

    With an installed pyspark and a JVM that is not running yet, workers start through `worker_python`, which halves
    their start time.
    """
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if os.environ.setdefault("PYSPARK_PYTHON", sys.executable) != sys.executable:
        return
    launcher = os.path.join(os.path.dirname(__file__), "worker_python")
    elsewhere = "SPARK_HOME" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ
    if not elsewhere and os.name == "posix" and os.access(launcher, os.X_OK):
        os.environ["PYSPARK_PYTHON"] = launcher
        os.environ["OTTLA_SPARK_PYTHON"] = sys.executable


def _choose_cluster_interpreter() -> None:
    """Make executors run the driver's version of Python from their own PATH, and the driver's planner this interpreter.

    Spark has one name for both. The driver's path is that of its virtual environment, which executors do not have.
    """
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if os.environ.setdefault("PYSPARK_PYTHON", name) != name:
        return
    folder = os.path.dirname(sys.executable)
    if os.access(os.path.join(folder, name), os.X_OK):
        os.environ["PATH"] = folder + os.pathsep + os.environ.get("PATH", "")


def register(spark: SparkSession) -> None:
    """Register ottla's formats with a session and install the filter pushdown."""
    from ottla.spark.formats import SOURCES
    from ottla.spark.pushdown.rule import install as install_pushdown
    from ottla.spark.reasons import end_with_sentence

    end_with_sentence()
    install_pushdown(spark)
    for source in SOURCES:
        spark.dataSource.register(source)
