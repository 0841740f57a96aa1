"""Text from clients made safe for terminals and log lines: control characters are escaped, everything else is kept."""

from __future__ import annotations

import logging
import re
from typing import Final

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# C0, DEL, C1, separators of lines, directional formatting, surrogates, byte order mark, interlinear annotation, tags.
_UNSAFE: Final = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb"
_UNSAFE_CHARACTERS: Final = re.compile(f"[{_UNSAFE}\U000e0000-\U000e007f]")


def printable(text: str, *, keep: str = "") -> str:
    r"""Return the text with every control character as an escape (`\n`, `\u001b`), except those in `keep`.

    The escapes are those of JSON, so that a JSON document stays valid.
    """
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE_CHARACTERS.sub(lambda match: match[0] if match[0] in keep else _escape(match[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    if code > 0xFFFF:  # as a pair of surrogates
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return _SHORT.get(character) or f"\\u{code:04x}"


class PrintableFormatter(logging.Formatter):
    """Formats log records on one line each: messages cannot carry control characters; tracebacks keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """Return the formatted line with the message escaped."""
        record.message = printable(record.message)
        return super().formatMessage(record)
