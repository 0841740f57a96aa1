"""Regular expressions from clients, compiled with RE2; errors have the wording of re2j, which Kafka uses."""

from __future__ import annotations

import re
from typing import Any, Final

import re2  # type: ignore[import-untyped]

from ottla.protocol.errors import ErrorCode, KafkaError

_WORDS: Final = {
    "missing )": "missing closing )",
    "unexpected )": "regexp/syntax: internal error",
    "missing ]": "missing closing ]",
    "trailing \\": "trailing backslash at end of expression",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid repetition size": "invalid repeat count",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
}
_GROUP_NAME: Final = re.compile(r"(?<!\\)\(\?P?<(\w+)>")


def compile_expression(pattern: str, what: str) -> Any:
    """Compile an expression; raise INVALID_REGULAR_EXPRESSION, whose message begins with `what`."""
    reason = None
    try:
        options = re2.Options()
        options.log_errors = False
        compiled = re2.compile(pattern, options)
        names = _GROUP_NAME.findall(pattern)
        if len(set(names)) == len(names):
            return compiled
        reason = "duplicate capture group name"
    except re2.error as error:
        message = error.args[0] if error.args else ""
        text = message.decode(errors="replace") if isinstance(message, bytes) else str(message)
        reason = text.partition(": ")[0]
    raise KafkaError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"{what} `{pattern}` is not a valid regular expression: {_WORDS.get(reason, reason)}.",
    )
