"""Find a pipeline (a folder with a Declarative Pipelines spec, or a plain PySpark file) and start its runner.

Runners (`plain`, `declarative`) are processes, so that a pipeline may do anything to its process. They write
`.ottla/status.json`, which `run` shows and `status` reads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SPECS: Final = ("spark-pipeline.yml", "spark-pipeline.yaml")
PLAIN: Final = "pipeline.py"
STATE: Final = ".ottla"
BOOTSTRAP: Final = "OTTLA_BOOTSTRAP"


class PipelineError(RuntimeError):
    """There is no pipeline, or it cannot run; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline's folder."""

    folder: Path
    file: Path
    declarative: bool
    part: str = ""
    """The subfolder of `.ottla` with status and log of runs beside the stream: `backfill`."""

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.name

    @property
    def state(self) -> Path:
        """The folder of checkpoints, tables, status, and the data of a broker started here."""
        return self.folder / STATE

    @property
    def status_file(self) -> Path:
        """The status file of the last run."""
        return self.state / self.part / "status.json"

    @property
    def log_file(self) -> Path:
        """The output of the runner and of Spark."""
        return self.state / self.part / "run.log"


def find_pipeline(path: str | Path) -> Pipeline:
    """Return the pipeline of a folder or a file."""
    path = Path(path).resolve()
    if path.is_file():
        return Pipeline(path.parent, path, path.name in SPECS)
    if not path.is_dir():
        raise PipelineError(f"there is no folder {path}; `ottla pipeline init {path}` creates one")
    specs = [path / name for name in SPECS if (path / name).is_file()]
    if specs:
        return Pipeline(path, specs[0], True)
    if (path / PLAIN).is_file():
        return Pipeline(path, path / PLAIN, False)
    raise PipelineError(f"{path} has neither {SPECS[0]} nor {PLAIN}; `ottla pipeline init` creates either")


def parse_topics(file: Path) -> list[tuple[str, int | None]]:
    """Return the topics of a pipeline's topics.txt with their partitions: one `name:partitions` a line, # comments."""
    if not file.is_file():
        return []
    topics: list[tuple[str, int | None]] = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        name, _, partitions = line.partition("#")[0].strip().partition(":")
        if not name:
            continue
        if partitions and not partitions.isdigit():
            raise PipelineError(f"{file.name}:{number}: {line!r}: write name:partitions, such as orders:3")
        topics.append((name, int(partitions) if partitions else None))
    return topics


def topic_names(file: Path) -> list[str]:
    """Return the names of the topics of a pipeline's topics.txt."""
    return [name for name, _ in parse_topics(file)]


@dataclass(slots=True)
class RunSettings:
    """The settings of a run beyond the pipeline itself."""

    bootstrap: str
    master: str | None = None
    config: dict[str, str] = field(default_factory=dict)
    dry: bool = False
    once: bool = False
    full_refresh: bool = False
    backfill: dict[str, Any] | None = None

    def as_json(self, part: str = "") -> str:
        """Return the settings for the runner's command line."""
        return json.dumps({"part": part, **{name: getattr(self, name) for name in RunSettings.__slots__}})


def start(
    pipeline: Pipeline, settings: RunSettings, *, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start the runner; its output goes to the log file."""
    pipeline.state.mkdir(parents=True, exist_ok=True)
    ignore = pipeline.state / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    pipeline.status_file.parent.mkdir(exist_ok=True)
    pipeline.status_file.unlink(missing_ok=True)
    module = "ottla.spark.pipeline.declarative" if pipeline.declarative else "ottla.spark.pipeline.plain"
    with pipeline.log_file.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, str(pipeline.file), settings.as_json(pipeline.part)],
            cwd=pipeline.folder,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches only the command, which stops the runner
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, BOOTSTRAP: settings.bootstrap, **(environment or {})},
        )


def read_status(pipeline: Pipeline) -> dict[str, Any]:
    """Return the status of the last run; a run whose process is gone is not running."""
    try:
        status: dict[str, Any] = json.loads(pipeline.status_file.read_text())
    except (OSError, ValueError):
        return {"state": "never run", "queries": []}
    if status.get("state") in ("starting", "running") and not _alive(status.get("pid", 0)):
        status["state"] = "died"
    return status


def begin_status(state: Path) -> dict[str, Any]:
    """Return the first status of a runner, which adds to it."""
    state.mkdir(parents=True, exist_ok=True)
    status: dict[str, Any] = {"pid": os.getpid(), "state": "starting", "started": time.time(), "queries": []}
    write_status(state / "status.json", status)
    return status


def end_status(pipeline: Pipeline) -> None:
    """Record that the run was stopped, if its runner was killed before it could."""
    status = read_status(pipeline)
    if status["state"] == "died":
        write_status(pipeline.status_file, {**status, "state": "stopped", "ended": time.time()})


def write_status(path: Path, status: Mapping[str, Any]) -> None:
    """Write the status atomically."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(status))
    part.replace(path)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return pid > 0


def error_in_log(pipeline: Pipeline) -> str:
    """Return the last line of a run's log that looks like a reason."""
    from ottla.spark.reasons import reason

    try:
        text = pipeline.log_file.read_text(errors="replace")
    except OSError:
        return "the runner wrote no output"
    at = text.rfind("Traceback (most recent call last)")
    return (
        reason(RuntimeError(text[at:]))
        if at >= 0
        else (text.strip().splitlines() or ["the runner wrote no output"])[-1]
    )
