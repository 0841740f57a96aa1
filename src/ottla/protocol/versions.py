"""Ranges of versions, written as Kafka's definitions write them."""

from __future__ import annotations

MAX_VERSION = 32767

NO_VERSIONS = range(0)
ALL_VERSIONS = range(MAX_VERSION + 1)
_parsed_versions: dict[str, range] = {"none": NO_VERSIONS, "0+": ALL_VERSIONS}


def parse_versions(text: str) -> range:
    """Turn Kafka's way of writing versions ("4-18", "12+", "3", "none") into a range."""
    versions = _parsed_versions.get(text)
    if versions is None:
        first, dash, last = text.partition("-")
        if first.endswith("+"):
            versions = range(int(first[:-1]), MAX_VERSION + 1)
        else:
            versions = range(int(first), int(last if dash else first) + 1)
        _parsed_versions[text] = versions
    return versions


def format_versions(versions: range) -> str:
    """Write a range the way Kafka does; the inverse of `parse_versions`."""
    if not versions:
        return "none"
    first, last = versions[0], versions[-1]
    if last == MAX_VERSION:
        return f"{first}+"
    return str(first) if first == last else f"{first}-{last}"
