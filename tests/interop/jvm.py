"""Runs Java for the interop tests: Apache Kafka's jars and the small Java programs of this folder.

Everything lands under .cache/ in the repository, keyed by Kafka's version; a second start runs neither Maven
nor javac. What is started with it (a broker, a tool, a client) is the business of the neighbouring modules.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from .downloads import download

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

KAFKA_VERSION = "4.3.1"
LOG4J_VERSION = "2.25.4"
FLINK_VERSION = "2.3.0"

_HERE = Path(__file__).resolve().parent
_CACHE = Path(os.environ.get("OTTLA_CACHE", _HERE.parents[1] / ".cache"))

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>ottla</groupId><artifactId>kafka-{name}</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""

_DEPENDENCY = "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version></dependency>"

# Tools that give up after some seconds by themselves, or drop what they were given: they are told to have patience.
_PATIENT = {
    "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand": ("--timeout", "300000"),
    "org.apache.kafka.tools.consumer.group.ShareGroupCommand": ("--timeout", "300000"),
    "org.apache.kafka.tools.streams.StreamsGroupCommand": ("--timeout", "300000"),
    "org.apache.kafka.tools.ConsoleProducer": (
        *("--request-timeout-ms", "120000"),
        *("--message-send-max-retries", "1000000"),
        *("--max-block-ms", "300000"),
    ),
    "org.apache.kafka.tools.BrokerApiVersionsCommand": ("--command-config", "{patient}"),
}

_LOG4J = """<Configuration status="ERROR" shutdownHook="disable">
  <Appenders><Console name="out" target="SYSTEM_ERR">
    <PatternLayout pattern="[%d{ISO8601}] %p %m (%c{1})%n"/>
  </Console></Appenders>
  <Loggers><Root level="${sys:ottla.log.level:-WARN}"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""

_ADMIN = "request.timeout.ms=120000\ndefault.api.timeout.ms=300000\n"


class JvmMissingError(Exception):
    """Java, javac or Maven is not there, or Maven could not fetch the jars; the text says which."""


class ToolFailedError(AssertionError):
    """A Java program ended with a code other than 0; the text holds its output."""


@dataclass(frozen=True, slots=True)
class Jvm:
    """A Java with a class path that holds Apache Kafka and our own programs."""

    java: str
    lib: Path
    classes: Path
    log4j: Path
    classpath: str

    @property
    def patient(self) -> Path:
        """The settings of an admin client that waits for a broker which is slow for a while."""
        return self.log4j.with_name("patient.properties")

    def arguments(self, main: str, args: Sequence[str]) -> list[str]:
        """A tool's arguments, with patience where the tool has little and was not given any."""
        more = _PATIENT.get(main, ())
        notified = [] if not more or more[0] in args else [entry.format(patient=self.patient) for entry in more]
        return [*args, *notified]

    def command(
        self,
        main: str,
        *args: str,
        heap: str = "256m",
        log_level: str = "WARN",
        properties: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Return the command line that runs a main class; small heap, quick start."""
        command = [
            self.java,
            f"-Xmx{heap}",
            "-Xms32m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xshare:auto",
            "-Xlog:disable",  # what the JVM itself has to say is no part of what a program prints
            "-Xlog:all=warning:stderr",
            "-XX:+DisplayVMOutputToStderr",
            f"-Dottla.log.level={log_level}",
            f"-Dlog4j2.configurationFile={self.log4j.as_uri()}",
            "-Dlog4j2.disableJmx=true",
            "-Djava.awt.headless=true",
        ]
        command += [f"-D{key}={value}" for key, value in (properties or {}).items()]
        return [*command, "-cp", self.classpath, main, *self.arguments(main, args)]

    def run(
        self,
        main: str,
        *args: str,
        stdin: bytes = b"",
        timeout: float = 900,
        check: bool = True,
        log_level: str = "WARN",
        properties: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a main class to its end; a failure shows everything it printed."""
        try:
            done = subprocess.run(
                self.command(main, *args, log_level=log_level, properties=properties),
                input=stdin,
                capture_output=True,
                timeout=timeout,
                check=False,
                cwd=cwd,
            )
        except subprocess.TimeoutExpired as problem:
            messages = b"\n".join(entry for entry in (problem.stdout, problem.stderr) if entry).decode(errors="replace")
            raise ToolFailedError(f"{main} {' '.join(args)} had not ended after {timeout} s\n{messages}") from None
        result = subprocess.CompletedProcess(
            done.args,
            done.returncode,
            done.stdout.decode(errors="replace"),
            done.stderr.decode(errors="replace"),
        )
        if check and result.returncode != 0:
            raise ToolFailedError(
                f"{main} {' '.join(args)} ended with code {result.returncode}\n{result.stdout}\n{result.stderr}"
            )
        return result


def missing() -> str | None:
    """Say what a machine lacks to run Apache Kafka, or None; looks only at what is installed."""
    lacking = [
        f"{name} ({package})"
        for name, package in (
            ("java", "openjdk-17-jre-headless"),
            ("javac", "openjdk-17-jdk-headless"),
            ("mvn", "maven"),
        )
        if shutil.which(name) is None
    ]
    return f"not installed: {', '.join(lacking)}" if lacking else None


@lru_cache(maxsize=1)
def jvm() -> Jvm:
    """Return the Java to run Kafka with; the first call on a machine fetches jars and runs javac."""
    problem = missing()
    if problem is not None:
        raise JvmMissingError(problem)
    java = shutil.which("java")
    assert java is not None
    home = _CACHE / f"kafka-{KAFKA_VERSION}"
    home.mkdir(parents=True, exist_ok=True)
    with _exclusive(home / ".lock"):
        lib = _jars(
            home,
            "lib",
            [
                ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
                ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
                ("org.apache.kafka", "kafka-shell", KAFKA_VERSION),
                ("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_VERSION),
            ],
        )
        log4j = home / "log4j2.xml"
        for path, text in ((log4j, _LOG4J), (log4j.with_name("patient.properties"), _ADMIN)):
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
        classes = _classes(home, lib)
    classpath = os.pathsep.join([str(classes / "programs.jar"), *sorted(str(jar) for jar in lib.glob("*.jar"))])
    return Jvm(java, lib, classes, log4j, classpath)


@lru_cache(maxsize=1)
def streams_jvm() -> Jvm:
    """Return a Jvm with Kafka Streams, whose state store is a jar of 70 MB, and the programs that use it."""
    base = jvm()
    home = _CACHE / f"kafka-{KAFKA_VERSION}"
    with _exclusive(home / ".lock"):
        lib = _jars(home, "streams", [("org.apache.kafka", "kafka-streams", KAFKA_VERSION)])
        classes = _classes(home, lib, "java/streams")
    own = [classes / "programs.jar", *sorted(jar for jar in lib.glob("*.jar") if not (base.lib / jar.name).exists())]
    return replace(base, classpath=os.pathsep.join([*map(str, own), base.classpath]))


@lru_cache(maxsize=1)
def registry_jvm() -> Jvm:
    """Return a Jvm with Confluent's registry client, which Maven Central has only inside Flink's Avro format."""
    base = jvm()
    home = _CACHE / f"kafka-{KAFKA_VERSION}"
    with _exclusive(home / ".lock"):
        lib = _jars(home, "registry", [("org.apache.flink", "flink-sql-avro-confluent-registry", FLINK_VERSION)])
        classes = _classes(home, lib, "java/registry")
    own = [classes / "programs.jar", *sorted(lib.glob("*.jar"))]
    return replace(base, classpath=os.pathsep.join([*map(str, own), base.classpath]))


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _jars(home: Path, name: str, artifacts: Sequence[tuple[str, str, str]]) -> Path:
    key = hashlib.sha256(repr(artifacts).encode()).hexdigest()[:12]
    target = home / f"{name}-{key}"
    if target.exists():
        return target
    work = home / f"{name}-{key}.part"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    pom = work / "pom.xml"
    dependencies = "".join(_DEPENDENCY.format(*artifact) for artifact in artifacts)
    pom.write_text(_POM.format(name=name, dependencies=dependencies))
    goals = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={work}"]
    done = download(["mvn", "-B", "-q", "-f", str(pom), *goals])
    if done.returncode != 0:
        raise JvmMissingError(f"Maven could not fetch Apache Kafka {KAFKA_VERSION}:\n{done.stdout}{done.stderr}")
    pom.unlink()
    work.rename(target)
    return target


def _classes(home: Path, lib: Path, folder: str = "java") -> Path:
    sources = sorted((_HERE / folder).glob("*.java"))
    digest = hashlib.sha256(lib.name.encode())
    for source in sources:
        digest.update(source.read_bytes())
    target = home / f"classes-{digest.hexdigest()[:12]}"
    if target.exists():
        return target
    work = home / f"{target.name}.part"
    shutil.rmtree(work, ignore_errors=True)
    (work / "out").mkdir(parents=True)
    done = subprocess.run(
        ["javac", "-nowarn", "-cp", f"{lib}/*", "-d", str(work / "out"), *map(str, sources)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ToolFailedError(f"javac failed:\n{done.stdout}{done.stderr}")
    subprocess.run(["jar", "cf", str(work / "programs.jar"), "-C", str(work / "out"), "."], check=True)
    work.rename(target)
    return target
