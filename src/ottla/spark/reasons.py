"""Extract one sentence from Spark's exceptions, which wrap a Python traceback in a Java one in a Python one."""

from __future__ import annotations

import re
import sys
from typing import Any, Final

_RAISED: Final = re.compile(r"^\s*(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception|Exit)): (.+)$", re.MULTILINE)
_CONDITION: Final = re.compile(r"\[([A-Z_]+(?:\.[A-Z_]+)*)\] ")
_JAVA: Final = re.compile(r"^(?:Caused by)?: (?:[\w$]+\.)+[\w$]+: (.+)$", re.MULTILINE)
_OWN: Final = re.compile(r"^ottla(?:\.\w+)+: (.+)$", re.MULTILINE)
_VIOLATED: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (expectation '.+)$", re.MULTILINE)
_MISSING: Final = "ModuleNotFoundError: No module named 'ottla'"
_INSTALL: Final = (
    "this Spark cannot import ottla: pip install 'ottla[spark]' where its driver and its executors run, with the same "
    "version as here"
)
_STATE: Final = re.compile(r"\s*SQLSTATE: \w{5}\b.*", re.DOTALL)


def reason(error: BaseException) -> str:
    """Return the message of the first exception.

    >>> reason(RuntimeError("[STREAM_FAILED] x\\nTraceback ...\\nValueError: no such topic\\n SQLSTATE: 38000"))
    'no such topic'
    >>> reason(RuntimeError("[TABLE_NOT_FOUND] The table t is not there. SQLSTATE: 42P01; line 1"))
    'The table t is not there.'
    >>> reason(RuntimeError("An error occurred while calling o1.parquet.\\n: java.io.IOException: Mkdirs failed"))
    'Mkdirs failed'
    """
    text = str(error)
    sentence = own_sentence(text)
    if sentence is not None:
        return sentence
    if "Traceback (most recent call last)" in text or "Traceback ..." in text:
        raised = _RAISED.findall(text)
        own = [message for kind, message in raised if not kind.startswith(("Spark", "Py4J", "StreamingQuery"))]
        if own or raised:
            return _STATE.sub("", own[-1] if own else raised[-1][1]).strip()
    if text.startswith("An error occurred while calling"):  # of Py4J; the last cause names the file
        causes = _JAVA.findall(text)
        if causes:
            text = causes[-1]
    line = _STATE.sub("", text).strip().partition("\n")[0]
    condition = _CONDITION.search(line)
    return (line[condition.end() :] if condition else line) or type(error).__name__


def own_sentence(text: str) -> str | None:
    """Return the message of an error that a source or sink of ottla raised inside Spark; None if there is none.

    >>> own_sentence("[X] y\\nTraceback ...\\nottla.spark.options.OptionError: no such topic\\n SQLSTATE: 38000")
    'no such topic'
    """
    if _MISSING in text:
        return _INSTALL
    raised = _OWN.findall(text) or _VIOLATED.findall(text)
    return _STATE.sub("", raised[-1]).strip() if raised else None


def end_with_sentence() -> None:
    """Make pyspark's exceptions end with the sentence of ottla's error, which is otherwise amid two stack traces."""
    from pyspark.errors.exceptions.captured import CapturedException

    _append_to(CapturedException)
    connect = sys.modules.get("pyspark.errors.exceptions.connect")
    if connect is not None:
        _append_to(connect.SparkConnectGrpcException)


def _append_to(exception: Any) -> None:
    plain = exception.__str__
    if getattr(plain, "ends_with_sentence", False):
        return

    def text(self: Any) -> str:
        shown = str(plain(self))
        sentence = own_sentence(shown)
        return shown if sentence is None or shown.endswith(sentence) else f"{shown.rstrip()}\n\n{sentence}"

    text.ends_with_sentence = True  # type: ignore[attr-defined]
    exception.__str__ = text
