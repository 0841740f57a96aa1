"""Registry clients of other languages: franz-go's `sr`, Confluent's Java client, kafkajs's client for Node."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.testing import Cluster

from .downloads import download
from .go_programs import build_program
from .jvm import JvmMissingError, registry_jvm

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.interop
HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("OTTLA_CACHE", HERE.parents[1] / ".cache"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(registry=True, users={"alice": "secret"}) as cluster:
        yield cluster


@pytest.fixture
def url(cluster: Cluster) -> str:
    cluster.reset()
    return cluster.registry_url


def run(*command: str, **options: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def test_franz_go_evolves_a_schema(url: str) -> None:
    program = build_program(HERE / "go_registry")
    assert json.loads(run(str(program), url, "alice", "secret")) == {
        "versions": [1, 1, 2, 2],
        "compatible": [False, False],
        "broken": 409,
        "references": [3, 1, "lines-value"],
        "type": "PROTOBUF",
        "lookup": [1, True],
        "settings": ["FULL", "READWRITE"],
        "subjects": ["lines-value", "orders-value", "proto-value"],
        "framed": "AAAAAAI=",
        "missing": 40401,
    }


def test_confluents_java_client_evolves_a_schema(url: str) -> None:
    try:
        jvm = registry_jvm()
    except JvmMissingError as error:
        pytest.skip(str(error))
    lines = run(*jvm.command("RegistryActions", url, "alice:secret", log_level="ERROR")).splitlines()
    assert lines == [
        "register 1",
        "again 1",
        "compatible true",
        "evolve 2",
        "verbose 4",
        "broken 409 409",
        "reference 3",
        "by id true",
        "latest 2 2",
        "version 1",
        "id 2",
        "compatibility FULL",
        "mode READWRITE",
        "subjects [lines-value, orders-value]",
        "versions [1, 2]",
        "deleted [1]",
        "permanently [1]",
        "missing 404 40401",
    ]


def node_modules() -> Path:
    """Return a folder with the Node client, installed without the scripts of its packages."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node is not installed (Debian: apt-get install nodejs npm)")
    lock = (HERE / "node" / "package-lock.json").read_bytes()
    home = CACHE / f"node-{hashlib.sha256(lock).hexdigest()[:16]}"
    if not home.exists():
        part = home.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / "node" / name, part)
        fetched = download(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=part)
        if fetched.returncode != 0:
            pytest.skip(f"the Node packages cannot be had: {fetched.stderr.strip()[-200:]}")
        part.rename(home)
    return home


def test_kafkajs_client_evolves_encodes_and_decodes(url: str) -> None:
    home = node_modules()
    program = home / "registry.mjs"
    shutil.copy(HERE / "node" / "registry.mjs", program)
    assert json.loads(run("node", str(program), url, "alice", "secret")) == {
        "ids": [1, 2],
        "broken": 409,
        "framed": [0, 0, 0, 0, 1],
        "decoded": {"id": "o-1"},
        "latest": 2,
        "found": 1,
        "json": {"id": "o-2"},
        "proto": {"item": {"sku": "s-1"}},
    }
