"""What is shipped to executors, and the sentences about executors that cannot run it. Needs no Spark."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from ottla.records import kernel
from ottla.spark.shipping import (
    OWN,
    Executor,
    explain_failed_probe,
    pack,
    pack_modules,
    python_tag,
    unusable,
)

if TYPE_CHECKING:
    from pathlib import Path

VERSION = ".".join(map(str, sys.version_info[:2]))


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import ottla.client.client, ottla.records.compression, ottla.records.crc
from ottla.records import kernel
assert ottla.__file__.startswith(sys.argv[1]), ottla.__file__
print(kernel.COMPILED)
"""


def test_archive_has_all_that_a_bare_python_needs(tmp_path: Path) -> None:
    archive = pack("ottla", OWN, own_package=True)
    with zipfile.ZipFile(archive.path) as zipped:
        zipped.extractall(tmp_path / "unpacked")
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(tmp_path / "unpacked")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(kernel.COMPILED)


def test_unchanged_packages_are_zipped_once(cache: Path) -> None:
    first = pack("ottla", OWN, own_package=True)
    again = pack("ottla", OWN, own_package=True)
    assert (again.path, again.seconds) == (first.path, 0.0)
    assert first.seconds > 0
    assert list(cache.rglob("*")) == [cache / "ottla", cache / "ottla" / "spark", first.path]


def test_archives_of_connect_are_packages(tmp_path: Path) -> None:
    archives = {archive.name: archive for archive in pack_modules(OWN)}
    assert {"ottla", "cramjam"} <= set(archives)
    with zipfile.ZipFile(archives["ottla"].path) as zipped:
        assert "__init__.py" in zipped.namelist()
        assert "spark/formats.py" in zipped.namelist()


def test_missing_distribution_is_left_out() -> None:
    assert pack("none", ("no-such-distribution",)).size < 100


def test_executor_of_another_platform_is_named() -> None:
    assert unusable([Executor("one", (), python_tag())], python_tag()) is None
    problem = unusable([Executor("two", (), "cpython-3.9-linux-aarch64")], python_tag())
    assert problem is not None
    assert problem.startswith(f"executor two runs cpython-3.9-linux-aarch64 and the driver {python_tag()}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('java.io.IOException: Cannot run program "python3.11"', "executors have no python3.11: install Python"),
        ("[PYTHON_VERSION_MISMATCH] x", "python3.11 of the executors is another version"),
        ("anything", "executors cannot run Python tasks: the reason"),
    ],
)
def test_failed_probe_is_one_sentence(text: str, sentence: str) -> None:
    explained = explain_failed_probe(text, "the reason", "python3.11")
    assert explained.startswith(sentence)
    assert "\n" not in explained
