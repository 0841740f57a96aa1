"""JSON that a person can review: one line per entry down to a depth, compact below it."""

from __future__ import annotations

import json
from typing import Any


def reviewable_json(value: Any, depth: int, indent: str = "") -> str:
    """Return JSON with the entries of the outer `depth` levels on lines of their own."""
    if depth == 0 or not isinstance(value, dict | list) or not value:
        return json.dumps(value)
    inner = indent + " "
    if isinstance(value, dict):
        entries = [f"{inner}{json.dumps(key)}: {reviewable_json(value[key], depth - 1, inner)}" for key in value]
    else:
        entries = [f"{inner}{reviewable_json(entry, depth - 1, inner)}" for entry in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n" + ",\n".join(entries) + f"\n{indent}{closing}"
