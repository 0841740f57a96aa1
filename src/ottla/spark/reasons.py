"""Extract one sentence from Spark's exceptions, which wrap a Python traceback in a Java one in a Python one."""

from __future__ import annotations

import re
from typing import Final

_RAISED: Final = re.compile(r"^\s*(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception|Exit)): (.+)$", re.MULTILINE)
_CONDITION: Final = re.compile(r"\[([A-Z_]+(?:\.[A-Z_]+)*)\] ")
_JAVA: Final = re.compile(r"^(?:Caused by)?: (?:[\w$]+\.)+[\w$]+: (.+)$", re.MULTILINE)
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
