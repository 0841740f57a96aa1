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


class SparkSetupError(RuntimeError):
    """Spark cannot start here; the message says what to install."""


def check_setup() -> None:
    """Raise `SparkSetupError` unless pyspark and Java are installed in versions that work; select the Java."""
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
    java, rejected = find_java()
    if java is None:
        raise SparkSetupError(
            f"Spark needs Java 17 or newer, and {', '.join(rejected)}: pip install 'ottla[spark]' brings one"
            + ("" if os.name == "posix" else " on Linux and macOS; install Java 17 or 21 and set JAVA_HOME")
        )
    java.select()


def session(
    app_name: str = "ottla", *, master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session with ottla's formats, on all cores of this machine unless a master is given.

    Settings in `config` override those made here.
    """
    check_setup()
    from pyspark.sql import SparkSession

    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # The time a Python worker has to authenticate; the default of 15 s is too short on a busy machine.
        "spark.python.authenticate.socketTimeout": "120s",
    }
    chosen = master or os.environ.get("SPARK_MASTER") or "local[*]"
    _choose_interpreter(chosen)
    if chosen.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.builder.appName(app_name).master(chosen)
    for name, value in (settings | dict(config or {})).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def _choose_interpreter(master: str) -> None:
    """Make workers run this interpreter; by default they run the first python3 on PATH, without ottla.

    With a local master, an installed pyspark and a JVM that is not running yet, workers start through `worker_python`,
    which halves their start time.
    """
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if os.environ.setdefault("PYSPARK_PYTHON", sys.executable) != sys.executable:
        return
    launcher = os.path.join(os.path.dirname(__file__), "worker_python")
    elsewhere = "SPARK_HOME" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ
    if master.startswith("local") and not elsewhere and os.name == "posix" and os.access(launcher, os.X_OK):
        os.environ["PYSPARK_PYTHON"] = launcher
        os.environ["OTTLA_SPARK_PYTHON"] = sys.executable


def register(spark: SparkSession) -> None:
    """Register ottla's formats with a session and install the filter pushdown."""
    from ottla.spark.formats import SOURCES
    from ottla.spark.pushdown.rule import install as install_pushdown
    from ottla.spark.sink.exactly_once_plan import watch

    watch()
    install_pushdown(spark)
    for source in SOURCES:
        spark.dataSource.register(source)
