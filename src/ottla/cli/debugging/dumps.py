"""Parses pasted or piped dumps: hexdumps in the usual shapes, base64, or raw bytes."""

from __future__ import annotations

import base64
import binascii
import re

_OFFSET = re.compile(r"^(?:0x)?[0-9a-fA-F]{4,16}:\s*|^[0-9a-fA-F]{6,16}\s{2,}(?=[0-9a-fA-F]{2}\s)")
_ASCII_COLUMN = re.compile(r"\s*\|.*\|\s*$|\s{2,}\S.*$")
_NOISE = re.compile(r"0x|\\x|[\s,;:{}\[\]()\"']")
_HEX = re.compile(r"[0-9a-fA-F]+")


class NotADumpError(ValueError):
    """The input is neither a hexdump nor base64 nor binary."""


def read_dump(data: bytes, form: str = "auto") -> bytes:
    """Return the bytes of a dump; `form` is auto, hex, base64 or binary."""
    if form == "binary":
        return data
    text = _as_text(data)
    if form == "auto" and text is None:
        return data
    if text is None:
        raise NotADumpError(f"the input is not text, so it cannot be {form}; try --format binary")
    if not text.strip():
        raise NotADumpError("the input is empty; give a hexdump, base64 or the bytes of a frame")
    if form in ("auto", "hex"):
        try:
            return parse_hex(text)
        except NotADumpError:
            if form == "hex":
                raise
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        problem = "neither a hexdump nor base64" if form == "auto" else "not base64"
        raise NotADumpError(
            f"the input is {problem}; its first line is {text.strip().splitlines()[0][:60]!r}"
        ) from None


def parse_hex(text: str) -> bytes:
    """Return the bytes of hexadecimal text as hexdump -C, xxd, tcpdump -X or a person writes it."""
    parsed = bytearray()
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#") or stripped == "*" or re.fullmatch(r"[0-9a-fA-F]{7,8}", stripped):
            if stripped == "*":
                raise NotADumpError(f"line {number}: '*' leaves lines out; dump with `hexdump -v` or `xxd`")
            if re.fullmatch(r"[0-9a-fA-F]{7,8}", stripped) and not parsed:
                parsed += bytes.fromhex(stripped if len(stripped) % 2 == 0 else "0" + stripped)
            continue
        has_offset = _OFFSET.match(stripped)
        if has_offset:
            stripped = stripped[has_offset.end() :]
            # hexdump -C has a wide gap between its two groups of eight, so only text that is not hex ends the line.
            stripped = _without_ascii(stripped)
        digits = _NOISE.sub("", stripped)
        if not digits:
            continue
        if not _HEX.fullmatch(digits):
            raise NotADumpError(f"line {number} is not hexadecimal: {line.strip()[:60]!r}")
        if len(digits) % 2:
            raise NotADumpError(f"line {number} has an odd number of hexadecimal digits: {line.strip()[:60]!r}")
        parsed += bytes.fromhex(digits)
    return bytes(parsed)


def _without_ascii(line: str) -> str:
    if line.rstrip().endswith("|"):
        return line[: line.find("|")]
    kept = []
    for column, group in enumerate(re.split(r"(\s{2,})", line)):
        if column % 2:
            continue
        if column >= 2 and not re.fullmatch(r"(?:[0-9a-fA-F]{2}\s?)+", group.strip() + " "):
            break
        kept.append(group)
    return " ".join(kept)


def _as_text(data: bytes) -> str | None:
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
