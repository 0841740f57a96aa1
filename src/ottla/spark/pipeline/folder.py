"""A pipeline is a folder: a Spark Declarative Pipelines spec, or a plain PySpark file. Finds it and runs it.

The runners are processes of their own (`pipeline_plain`, `pipeline_declarative`): what a pipeline does to its process
is its affair. They tell how they are doing in `.ottla/status.json`, which `run` shows and `status` reads.
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
    """There is no pipeline, or it cannot be run; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline's folder."""

    folder: Path
    file: Path
    declarative: bool

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def state(self) -> Path:
        """Checkpoints, tables, status and the broker's data, if it is ours."""
        return self.folder / STATE

    @property
    def status_file(self) -> Path:
        """Where a run tells how it is doing."""
        return self.state / "status.json"

    @property
    def log_file(self) -> Path:
        """What the runner and Spark print."""
        return self.state / "run.log"


def find_pipeline(place: str | Path) -> Pipeline:
    """The pipeline in a folder, or the one that a file is."""
    path = Path(place).resolve()
    if path.is_file():
        return Pipeline(path.parent, path, path.name in SPECS)
    if not path.is_dir():
        raise PipelineError(f"there is no folder {place}; `ottla pipeline init {place}` makes one")
    specs = [path / name for name in SPECS if (path / name).is_file()]
    if specs:
        return Pipeline(path, specs[0], True)
    if (path / PLAIN).is_file():
        return Pipeline(path, path / PLAIN, False)
    raise PipelineError(f"{place} has neither {SPECS[0]} nor {PLAIN}; `ottla pipeline init` makes both kinds")


@dataclass(slots=True)
class RunSettings:
    """What a run was asked for beyond the pipeline itself."""

    bootstrap: str
    master: str | None = None
    config: dict[str, str] = field(default_factory=dict)
    dry: bool = False
    once: bool = False
    full_refresh: bool = False

    def as_json(self) -> str:
        """For the runner's command line."""
        return json.dumps({name: getattr(self, name) for name in RunSettings.__slots__})


def start(
    pipeline: Pipeline, settings: RunSettings, *, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start the runner; its output goes to the log file."""
    pipeline.state.mkdir(parents=True, exist_ok=True)
    ignore = pipeline.state / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    pipeline.status_file.unlink(missing_ok=True)
    module = "ottla.spark.pipeline.declarative" if pipeline.declarative else "ottla.spark.pipeline.plain"
    with pipeline.log_file.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, str(pipeline.file), settings.as_json()],
            cwd=pipeline.folder,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches the command, which asks the runner to stop
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, BOOTSTRAP: settings.bootstrap, **(environment or {})},
        )


def read_status(pipeline: Pipeline) -> dict[str, Any]:
    """What the last run told; whether it still runs is seen at its process."""
    try:
        found: dict[str, Any] = json.loads(pipeline.status_file.read_text())
    except (OSError, ValueError):
        return {"state": "never run", "queries": []}
    if found.get("state") in ("starting", "running") and not _alive(found.get("pid", 0)):
        found["state"] = "died"
    return found


def begin_status(state: Path) -> dict[str, Any]:
    """What a runner tells first; it adds to it as it goes on."""
    state.mkdir(exist_ok=True)
    status: dict[str, Any] = {"pid": os.getpid(), "state": "starting", "started": time.time(), "queries": []}
    write_status(state / "status.json", status)
    return status


def end_status(pipeline: Pipeline) -> None:
    """Note that the run was stopped, if its runner was killed before it could write that itself."""
    status = read_status(pipeline)
    if status["state"] == "died":
        write_status(pipeline.status_file, {**status, "state": "stopped", "ended": time.time()})


def write_status(path: Path, status: Mapping[str, Any]) -> None:
    """Tell how the run is doing; a reader sees the old or the new whole."""
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
    """The last thing that looks like a reason in a run's log."""
    from ottla.spark.reasons import reason

    try:
        text = pipeline.log_file.read_text(errors="replace")
    except OSError:
        return "the runner said nothing"
    at = text.rfind("Traceback (most recent call last)")
    return (
        reason(RuntimeError(text[at:])) if at >= 0 else (text.strip().splitlines() or ["the runner said nothing"])[-1]
    )
