"""Config values: parse and format as Kafka's `ConfigDef` does. Validators are in `configs.rules`."""

from __future__ import annotations

import math
import re
from enum import IntEnum
from typing import Final

from ottla.protocol.errors import ErrorCode, KafkaError

Value = bool | int | float | str | tuple[str, ...] | None

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

TRIMMED: Final = "".join(chr(code) for code in range(0x21))
_COMMA: Final = re.compile(r"[ \t\n\x0b\f\r]*,[ \t\n\x0b\f\r]*")
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_DOUBLE: Final = re.compile(r"[+-]?(NaN|Infinity|(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)[fFdD]?)")

_HEX_DOUBLE: Final = re.compile(r"[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?")


class ConfigType(IntEnum):
    """Type of a config, numbered as DescribeConfigs reports it."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_INTEGER_BITS: Final = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}


def invalid(name: str, value: str, reason: str | None = None) -> KafkaError:
    """Return INVALID_CONFIG for a value."""
    tail = f": {reason}" if reason is not None else ""
    return KafkaError(ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {name}{tail}")


def java_double(value: float) -> str:
    """Format a double as Java does: `0.5`, `1.0E7`, `1.7976931348623157E308`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = format(value, "f") if "e" in repr(value) else repr(value)
        return text if "." in text else text + ".0"
    # Python and Java agree on the shortest digits; point and exponent differ.
    digits, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = digits.partition(".")
    significant = (whole + fraction).lstrip("0")
    power = int(exponent or 0) + len(whole) - 1 - (len(whole + fraction) - len(significant))
    significant = significant.rstrip("0")
    return f"{'-' if value < 0 else ''}{significant[0]}.{significant[1:] or '0'}E{power}"


def to_text(value: Value) -> str | None:
    """Format a parsed value as DescribeConfigs returns it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return java_double(value)
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def shown(value: Value) -> str:
    """Format a parsed value for an error message."""
    if isinstance(value, tuple):
        return "[" + ", ".join(value) + "]"
    return to_text(value) or ("null" if value is None else "")


def parse_text(name: str, text: str, kind: ConfigType) -> Value:
    """Parse text as a config type, or raise INVALID_CONFIG."""
    trimmed = text.strip(TRIMMED)
    match kind:
        case ConfigType.BOOLEAN:
            lowered = trimmed.lower()
            if lowered in ("true", "false"):
                return lowered == "true"
            raise invalid(name, text, "Expected value to be either true or false")
        case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
            bits = _INTEGER_BITS[kind]
            # Limit the length first: int() of a megabyte of digits is slow.
            if len(trimmed) <= 64 and _INTEGER.fullmatch(trimmed):
                number = int(trimmed)
                if -(1 << (bits - 1)) <= number < 1 << (bits - 1):
                    return number
            raise invalid(name, text, f"Not a number of type {kind.name}")
        case ConfigType.DOUBLE:
            if _DOUBLE.fullmatch(trimmed):
                return float(trimmed.rstrip("fFdD"))
            if _HEX_DOUBLE.fullmatch(trimmed):
                return float.fromhex(trimmed.rstrip("fFdD"))
            raise invalid(name, text, f"Not a number of type {kind.name}")
        case ConfigType.LIST:
            return tuple(_COMMA.split(trimmed)) if trimmed else ()
        case _:
            return trimmed
