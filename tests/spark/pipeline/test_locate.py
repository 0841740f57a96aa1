"""Errors of a pipeline name its file and line."""

from __future__ import annotations

import runpy
from typing import TYPE_CHECKING

import pytest

from ottla.spark.pipeline.folder import PipelineError, parse_topics
from ottla.spark.pipeline.locate import caller_in, line_in_sql, with_location

if TYPE_CHECKING:
    from pathlib import Path


def failure(folder: Path, text: str) -> str:
    (folder / "pipeline.py").write_text(text)
    with pytest.raises(BaseException) as raised:
        runpy.run_path(str(folder / "pipeline.py"))
    return with_location(raised.value, folder)


def test_error_names_innermost_line_of_the_pipeline(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text("import json\n\ndef broken():\n    json.loads('{')\n")
    text = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport parts\nparts.broken()\n"
    assert failure(tmp_path, text).startswith("parts.py:4: Expecting property name")
    assert failure(tmp_path, "x = 1\ny = z\n") == "pipeline.py:2: NameError: name 'z' is not defined"
    assert failure(tmp_path, "x = 1\nif:\n") == "pipeline.py:2: invalid syntax"


def test_note_of_a_failed_query_replaces_the_traceback(tmp_path: Path) -> None:
    error = ValueError("no such topic")
    error.add_note("pipeline.py:12: query spending")
    assert with_location(error, tmp_path) == "pipeline.py:12: query spending: no such topic"


def test_caller_is_found_in_the_folder_only(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text(
        "from ottla.spark.pipeline.locate import caller_in\nwhere = caller_in(folder)\n"
    )
    names = runpy.run_path(str(tmp_path / "pipeline.py"), {"folder": tmp_path})
    assert names["where"] == "pipeline.py:2"
    assert caller_in(tmp_path) is None


def test_line_of_sql_is_read_from_both_forms_of_spark() -> None:
    assert line_in_sql("Syntax error (line 7, pos 2)") == 7
    assert line_in_sql("column not found; line 12 pos 4;") == 12
    assert line_in_sql("nothing") is None


def test_wrong_line_of_topics_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "topics.txt"
    file.write_text("orders:3\n# note\nspending:many\n")
    with pytest.raises(PipelineError, match=r"^topics.txt:3: 'spending:many': write name:partitions"):
        parse_topics(file)
    file.write_text("orders:3 # sources\n\nspending\n")
    assert parse_topics(file) == [("orders", 3), ("spending", None)]
