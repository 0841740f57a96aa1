"""Name the file and the line of a pipeline that an error belongs to."""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path
from typing import Final

from ottla.spark.reasons import reason

_POSITION: Final = re.compile(r"\(line (\d+), (?:pos|position) \d+\)|; line (\d+),? pos \d+")


def with_location(error: BaseException, folder: Path) -> str:
    """Return the reason of an error after the file and the line in the pipeline's folder that caused it.

    A note of the form `pipeline.py:12: query spending` (of a failed query) is more exact than the traceback.
    """
    sentence = reason(error)
    for note in getattr(error, "__notes__", ()):
        return f"{note}: {sentence}".removeprefix(": ")
    if isinstance(error, SyntaxError) and error.filename and _inside(error.filename, folder):
        return f"{_relative(error.filename, folder)}:{error.lineno}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _inside(frame.filename, folder)]
    if not frames:
        return sentence
    name = "" if sentence and not isinstance(error, (KeyError, NameError)) else f"{type(error).__name__}: "
    return f"{_relative(frames[-1].filename, folder)}:{frames[-1].lineno}: {name}{sentence}"


def caller_in(folder: Path) -> str | None:
    """Return `file:line` of the innermost calling frame in a folder; None if no frame is in it."""
    frame = sys._getframe(1)
    while frame is not None:
        if _inside(frame.f_code.co_filename, folder):
            return f"{_relative(frame.f_code.co_filename, folder)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None


def line_in_sql(text: str) -> int | None:
    """Return the line that Spark's message about an SQL text names.

    >>> line_in_sql("[PARSE_SYNTAX_ERROR] Syntax error at or near 'x'. SQLSTATE: 42601 (line 3, pos 7)")
    3
    """
    match = _POSITION.search(text)
    return None if match is None else int(match[1] or match[2])


def _inside(filename: str, folder: Path) -> bool:
    try:
        relative = Path(filename).resolve().relative_to(folder.resolve())
    except (ValueError, OSError):
        return False
    return relative.parts[0] != ".ottla"


def _relative(filename: str, folder: Path) -> str:
    return Path(filename).resolve().relative_to(folder.resolve()).as_posix()
