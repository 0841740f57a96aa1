"""The files that `ottla pipeline init` writes: a pipeline that runs, and a test of it where it is Python."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from ottla.spark.pipeline.folder import PipelineError

if TYPE_CHECKING:
    from pathlib import Path

TEMPLATES: Final = {
    "python": "ottla.spark.pipeline.templates.plain",
    "sql": "ottla.spark.pipeline.templates.sql",
    "join": "ottla.spark.pipeline.templates.join",
    "declarative": "ottla.spark.pipeline.templates.declarative",
}


def make_pipeline(folder: Path, template: str = "python") -> list[Path]:
    """Write a new pipeline and return its files."""
    if template not in TEMPLATES:
        raise PipelineError(f"there is no template {template!r}; there are {', '.join(TEMPLATES)}")
    if folder.exists() and any(folder.iterdir()):
        raise PipelineError(f"{folder} is not empty; give a new name")
    files: dict[str, str] = importlib.import_module(TEMPLATES[template]).FILES
    made = []
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        storage = (folder / ".ottla" / "storage").resolve()
        path.write_text(text.replace("@NAME@", folder.resolve().name).replace("@STORAGE@", str(storage)))
        made.append(path)
    return made
