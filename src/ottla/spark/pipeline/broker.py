"""The broker of a pipeline run: a running one, or one started for the duration of the run."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ottla.client.client import Client
from ottla.client.connection import ConnectionFailedError
from ottla.spark.pipeline.folder import BOOTSTRAP, PipelineError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USUAL: Final = "localhost:9092"
_START_SECONDS: Final = 300
_STOP_SECONDS: Final = 120


def answers(bootstrap: str, timeout: float = 3.0) -> bool:
    """Return whether a broker responds at an address."""
    try:
        with Client(bootstrap, timeout=timeout) as client:
            client.refresh([])
    except (ConnectionFailedError, OSError):
        return False
    return True


@contextmanager
def broker(address: str | None, data_dir: Path) -> Iterator[tuple[str, bool]]:
    """Yield the bootstrap address and whether the broker was started here: the given, the default, or a new one."""
    bootstrap = address or os.environ.get(BOOTSTRAP)
    if bootstrap:
        if not answers(bootstrap, 60.0):
            raise PipelineError(f"no broker answers at {bootstrap}; start one with `ottla serve`, or omit -b")
        yield bootstrap, False
        return
    if answers(USUAL):
        yield USUAL, False
        return
    process = _serve(data_dir)
    try:
        yield _address(process, data_dir), True
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _serve(data_dir: Path) -> subprocess.Popen[bytes]:
    data_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "ottla", "serve", "-d", str(data_dir), "-p", "0", "-l", "warn", "--json"]
    with (data_dir.parent / "broker.log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )


def _address(process: subprocess.Popen[bytes], data_dir: Path) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
    line = process.stdout.readline() if ready else b""
    if not line:
        raise PipelineError(f"the broker did not start; see {data_dir.parent / 'broker.log'}")
    return str(json.loads(line)["bootstrap"])
