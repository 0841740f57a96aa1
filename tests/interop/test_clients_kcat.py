"""kcat from Debian, with its older librdkafka, against ottla."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.testing import Cluster

from .downloads import download

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.interop

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "kcat"
PACKAGES = ["kcat", "librdkafka1", "libyajl2"]
# Guards only: how long kcat waits for metadata (5 s, if not told), for what a broker serves, and for an answer.
PATIENT = [
    *("-m", "300"),
    *("-X", "api.version.request.timeout.ms=300000"),
    *("-X", "socket.timeout.ms=300000"),
    *("-X", "session.timeout.ms=300000"),
]


def find_kcat() -> tuple[str, dict[str, str]]:
    """An installed kcat, else one unpacked from Debian's package, without installing anything."""
    installed = shutil.which("kcat")
    if installed:
        return installed, {}
    unpacked = CACHE / "root" / "usr" / "bin" / "kcat"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not unpacked.exists():
            unpack_kcat()
    libraries = [str(path) for path in (CACHE / "root" / "usr" / "lib").glob("*-linux-gnu")]
    return str(unpacked), {"LD_LIBRARY_PATH": ":".join(libraries)}


def unpack_kcat() -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("kcat is not installed and this is no Debian")
    got = download(["apt-get", "download", *PACKAGES], cwd=CACHE)
    if got.returncode != 0:
        pytest.skip(f"kcat cannot be had from Debian: {got.stderr.strip()[-200:]}")
    part = CACHE / "root.part"
    for package in CACHE.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(part)], check=True)
    part.rename(CACHE / "root")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(topics=["lines:2"]) as running:
        yield running


@pytest.fixture(scope="module")
def kcat(cluster: Cluster) -> Callable[..., str]:
    program, environment = find_kcat()

    def run(*words: str, stdin: str = "") -> str:
        done = subprocess.run(
            [program, "-b", cluster.bootstrap, *PATIENT, *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
            env={**os.environ, **environment},
        )
        if done.returncode == 127 or "error while loading shared libraries" in done.stderr:
            pytest.skip(f"kcat does not run here: {done.stderr.strip()[-200:]}")
        assert done.returncode == 0, f"kcat {words}: {done.stdout}{done.stderr}"
        return done.stdout

    return run


def test_kcat_lists_produces_and_consumes(kcat: Callable[..., str]) -> None:
    listed = json.loads(kcat("-L", "-J"))
    assert [(topic["topic"], len(topic["partitions"])) for topic in listed["topics"] if topic["topic"] == "lines"] == [
        ("lines", 2)
    ]
    kcat("-P", "-t", "lines", "-p", "0", "-K", ":", "-H", "a=1", "-z", "snappy", stdin="k1:v1\nk2:v2\nk3:v3\n")
    result = kcat("-C", "-t", "lines", "-p", "0", "-e", "-q", "-f", r"%t/%p/%o %k=%s %h\n")
    assert result == "lines/0/0 k1=v1 a=1\nlines/0/1 k2=v2 a=1\nlines/0/2 k3=v3 a=1\n"
    assert kcat("-C", "-t", "lines", "-p", "0", "-o", "-1", "-e", "-q") == "v3\n"
    assert kcat("-C", "-t", "lines", "-p", "0", "-o", "1", "-c", "1", "-q") == "v2\n"


def test_kcat_consumes_in_group_and_queries_timestamps(kcat: Callable[..., str], cluster: Cluster) -> None:
    cluster.create_topic("grouped", 2)
    kcat("-P", "-t", "grouped", "-p", "1", stdin="one\ntwo\n")
    assert kcat("-G", "cats", "-e", "-q", "-X", "auto.offset.reset=earliest", "grouped").split() == ["one", "two"]
    assert "offset 0" in kcat("-Q", "-t", "grouped:1:1")


def test_same_pattern_gives_same_lines(kcat: Callable[..., str], cluster: Cluster) -> None:
    """`ottla consume -f` next to kcat's own."""
    from tests.cli.live import run

    cluster.create_topic("patterns")
    kcat("-P", "-t", "patterns", "-K", ":", "-H", "a=1", "-H", "b=2", stdin="k:v\n:empty key\nlonger:and longer\n")
    for text in (r"%t %p %o %T %K %S [%k] [%s] [%h]\n", r"%s\x0a", r"%o%%\t%k\n"):
        ours = run(cluster.bootstrap, "consume", "patterns", "-e", "-f", text).out
        assert ours == kcat("-C", "-t", "patterns", "-e", "-q", "-f", text)
