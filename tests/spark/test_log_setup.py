"""An unsupported Java or Spark fails with one sentence before Spark starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.spark.session import SparkSetupError, check_setup

if TYPE_CHECKING:
    from pathlib import Path

pyspark = pytest.importorskip("pyspark")
pytestmark = pytest.mark.xdist_group("spark")


def fake_java(folder: Path, says: str) -> str:
    (folder / "bin").mkdir()
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize("version", ['openjdk version "11.0.20" 2023-07-18', 'java version "1.8.0_392"'])
def test_old_java_fails_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path, version))
    with pytest.raises(SparkSetupError, match=r"^Spark needs Java 17 or newer, .*/bin/java is version (11|8)$"):
        check_setup()


def test_newer_java_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path, 'openjdk version "21.0.1" 2023-10-17'))
    check_setup()


def test_java_without_required_module_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path, 'openjdk version "17.0.15" 2025-04-15')
    with open(f"{home}/bin/java", "a") as java:
        java.write('[ "$1" = -version ]\n')
    monkeypatch.setenv("JAVA_HOME", home)
    with pytest.raises(
        SparkSetupError, match=r"^Spark needs a whole Java runtime, .* has no module jdk.incubator.vector"
    ):
        check_setup()


def test_missing_java_error_names_package_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(
        SparkSetupError, match=r"JAVA_HOME is .*, which has no bin/java \(Debian: apt-get install openjdk"
    ):
        check_setup()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkSetupError, match="no java is on PATH"):
        check_setup()


@pytest.mark.parametrize("version", ["4.0.2", "3.5.1", "5.0.0"])
def test_unsupported_spark_fails_with_its_version(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(SparkSetupError, match=rf"^pyspark {version} is installed and ottla.spark needs 4.2 or a later"):
        check_setup()
