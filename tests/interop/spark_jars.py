"""Downloads the Kafka connector, Delta and Iceberg for a pyspark with Maven, and other versions of pyspark with pip."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from pathlib import Path

from .downloads import download

# The connector's token provider is published for 4.0.0 only, and works with the later ones.
JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
DELTA = (
    ("io.delta", "delta-spark_4.2_2.13", "4.4.0"),
    ("io.delta", "delta-storage", "4.4.0"),
    ("io.delta", "delta-kernel-api", "4.4.0"),
    ("io.delta", "delta-kernel-defaults", "4.4.0"),
    ("io.delta", "delta-kernel-unitycatalog", "4.4.0"),
    ("io.unitycatalog", "unitycatalog-client", "0.6.0"),
    ("io.unitycatalog", "unitycatalog-hadoop", "0.6.0"),
)
ICEBERG = (("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0"),)
# Published for 4.1.1 where 4.2.0 is not; it works with 4.2.0.
AVRO = (("org.apache.spark", "spark-avro_2.13", "4.1.1"),)
CACHE = Path(os.environ.get("OTTLA_CACHE", Path(__file__).resolve().parents[2] / ".cache"))
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>ottla</groupId><artifactId>spark-jars</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>"
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
)


class JarsMissingError(Exception):
    """Maven or pip is not there, or could not fetch what is wanted."""


def connector_jars() -> str:
    """The connector, as Spark's setting spark.jars wants it; the first call on a machine runs Maven."""
    return _jars("spark-connector", JARS)


def delta_jars() -> str:
    """Delta, as Spark's setting spark.jars wants it."""
    return _jars("delta", DELTA)


def iceberg_jars() -> str:
    """Iceberg for Spark 4.1, as Spark's setting spark.jars wants it."""
    return _jars("iceberg", ICEBERG)


def avro_jars() -> str:
    """Spark's from_avro, as Spark's setting spark.jars wants it."""
    return _jars("spark-avro", AVRO)


def pyspark_of(version: str) -> Path:
    """A folder with that pyspark alone, to be first on PYTHONPATH; kept for the next time."""
    home = CACHE / "pyspark"
    home.mkdir(parents=True, exist_ok=True)
    target = home / version
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            part = target.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(part)]
            done = download([*pip, "--upgrade", f"pyspark=={version}"])
            if done.returncode != 0:
                shutil.rmtree(part, ignore_errors=True)
                raise JarsMissingError(f"pyspark {version} cannot be had here: {done.stderr.strip()[-400:]}")
            part.rename(target)
    return target


def _jars(name: str, jars: tuple[tuple[str, str, str], ...]) -> str:
    if shutil.which("mvn") is None:
        raise JarsMissingError("not installed: mvn (maven)")
    home = CACHE / name
    home.mkdir(parents=True, exist_ok=True)
    target = home / hashlib.sha256(repr(jars).encode()).hexdigest()[:12]
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _fetch(name, jars, target)
    return ",".join(sorted(str(jar) for jar in target.glob("*.jar")))


def _fetch(name: str, jars: tuple[tuple[str, str, str], ...], target: Path) -> None:
    work = target.with_suffix(".part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    pom = work / "pom.xml"
    pom.write_text(_POM.format(dependencies="".join(_DEPENDENCY.format(*jar) for jar in jars)))
    goals = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={work}"]
    done = download(["mvn", "-B", "-q", "-f", str(pom), *goals])
    if done.returncode != 0:
        raise JarsMissingError(f"Maven could not fetch {name}:\n{done.stdout}{done.stderr}")
    work.rename(target)
