"""Makes a Spark session that knows ottla's formats, or says in one sentence why it cannot.

The only place that looks for Java and for pyspark's version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

OLDEST_SPARK: Final = (4, 1)  # which reads, writes and exports, but has no streams from Python sources like ours
FIRST_UNKNOWN_SPARK: Final = (5, 0)
OLDEST_JAVA: Final = 17
_MODULE: Final = "jdk.incubator.vector"  # which Spark tells Java to load, and small runtimes lack


class SparkSetupError(RuntimeError):
    """Spark cannot start here; the message says what to install."""


def check_setup() -> None:
    """Raise `SparkSetupError` unless pyspark, Java and pyarrow are there in versions that work."""
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
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "no java is on PATH"
        raise SparkSetupError(
            f"Spark needs Java 17 or newer and {where} (Debian: apt-get install openjdk-17-jre-headless)"
        )
    said = _ask_java(java)
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said.stderr + said.stdout)
    number = 0 if found is None else int(found[2] if found[1] == "1" and found[2] else found[1])
    if number < OLDEST_JAVA:
        raise SparkSetupError(f"Spark needs Java 17 or newer, {java} is version {number or 'unknown'}")
    if _ask_java(java, "--add-modules", _MODULE).returncode:
        raise SparkSetupError(
            f"Spark needs a whole Java runtime, {java} has no module {_MODULE} (Debian: apt-get install "
            "openjdk-17-jre-headless)"
        )


def _ask_java(java: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([java, *arguments, "-version"], capture_output=True, text=True, check=False)


def session(
    app_name: str = "ottla", *, master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """A session with all of ottla's formats, on all cores of this machine unless a master is given.

    Settings in `config` win over those made here.
    """
    check_setup()
    from pyspark.sql import SparkSession

    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # How long a Python worker may take to say who it is: the 15 s that are usual may not do on a busy machine.
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
    """Have workers run this interpreter; they would otherwise take whichever python3 is on PATH, without ottla.

    On this machine, with a pyspark that is installed and a JVM that is yet to be started, they get it by way of
    `worker_python`, which lets them start in half the time.
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
    """Teach a session ottla's formats, and to hand filters to them."""
    from ottla.spark.formats import SOURCES
    from ottla.spark.pushdown import rule as pushdown_rule
    from ottla.spark.sink.exactly_once_plan import watch

    watch()
    pushdown_rule.install(spark)
    for source in SOURCES:
        spark.dataSource.register(source)
