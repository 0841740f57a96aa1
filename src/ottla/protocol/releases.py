"""Earlier Kafka releases: the newest version of each API, and the features, that a broker of that release served.

Restricts what a broker advertises. Not imitated: oldest versions that 4.0 removed (KIP-896), the release's records and
defaults. Up to 3.9 the table is that of brokers of a ZooKeeper cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

# The changes of each release: API key to its newest version from then on.
_CHANGES: Final[dict[str, dict[int, int]]] = {
    "2.4": {
        0: 8, 1: 11, 2: 5, 3: 9, 8: 8, 9: 6, 10: 3, 11: 6, 12: 4, 13: 4, 14: 4, 15: 5, 16: 3, 17: 1, 18: 3, 19: 5,
        20: 4, 21: 1, 22: 2, 23: 3, 24: 1, 25: 1, 26: 1, 27: 0, 28: 2, 29: 1, 30: 1, 31: 1, 32: 2, 33: 1, 34: 1, 35: 1,
        36: 1, 37: 1, 38: 2, 39: 1, 40: 1, 41: 1, 42: 2, 43: 2, 44: 1, 45: 0, 46: 0, 47: 0,
    },
    "2.5": {9: 7, 11: 7, 14: 5, 22: 3, 28: 3, 29: 2, 30: 2, 31: 2, 36: 2, 37: 2, 39: 2, 40: 2, 41: 2},
    "2.6": {16: 4, 21: 2, 32: 3, 35: 2, 48: 0, 49: 0},
    "2.7": {1: 12, 19: 6, 20: 5, 22: 4, 24: 2, 25: 2, 26: 2, 37: 3, 50: 0, 51: 0, 57: 0},
    "2.8": {
        0: 9, 2: 6, 3: 11, 19: 7, 20: 6, 23: 4, 24: 3, 25: 3, 26: 3, 27: 1, 32: 4, 33: 2, 34: 2, 48: 1, 49: 1, 60: 0,
        61: 0,
    },
    "3.0": {2: 7, 9: 8, 10: 4, 65: 0, 66: 0},
    "3.1": {1: 13, 3: 12},
    "3.2": {11: 9, 13: 5, 35: 3},
    "3.3": {29: 3, 30: 3, 31: 3, 35: 4, 38: 3, 41: 3, 57: 1},
    "3.4": {},
    "3.5": {1: 15, 2: 8},
    "3.6": {24: 4},
    "3.7": {0: 10, 1: 16, 8: 9, 9: 9, 60: 1, 68: 0},
    "3.8": {0: 11, 10: 5, 16: 5, 22: 5, 24: 5, 25: 4, 26: 4, 28: 4, 66: 1, 69: 0},
    "3.9": {1: 17, 2: 9, 10: 6, 18: 4},
    "4.0": {
        0: 12, 2: 10, 3: 13, 15: 6, 26: 5, 28: 5, 55: 2, 57: 2, 60: 2, 64: 0, 68: 1, 69: 1, 74: 0, 75: 0, 80: 0, 81: 0,
    },
    "4.1": {
        0: 13, 1: 18, 45: 1, 66: 2, 74: 1, 76: 1, 77: 1, 78: 1, 79: 1, 83: 0, 84: 0, 85: 0, 86: 0, 87: 0, 90: 0, 91: 0,
        92: 0,
    },
    "4.2": {2: 11, 8: 10, 9: 10, 27: 2, 78: 2, 79: 2, 80: 1, 85: 1, 87: 1, 88: 0, 89: 0, 90: 1},
    "4.3": {35: 5},
}  # fmt: skip
# The release that brought a feature other than metadata.version (which ends at the release's own level).
_FEATURES: Final = {
    "kraft.version": "3.9",
    "transaction.version": "4.0",
    "group.version": "4.0",
    "eligible.leader.replicas.version": "4.0",
    "share.version": "4.1",
    "streams.version": "4.2",
}


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """A Kafka release whose API versions a broker can serve."""

    name: str
    newest: dict[int, int]

    def restrict(self, key: int, versions: range) -> range:
        """Return the part of `versions` of an API that the release had; empty if it had none."""
        return range(versions.start, min(versions.stop, self.newest.get(key, -1) + 1))

    def has_feature(self, name: str) -> bool:
        """Return whether brokers of the release had a feature."""
        since = _FEATURES.get(name)
        if since is None:
            return _order(self.name) >= _order("3.3")
        return _order(self.name) >= _order(since)


def release_names() -> list[str]:
    """Return the known releases, oldest first."""
    return list(_CHANGES)


@cache
def find_release(name: str) -> Release:
    """Return a release by its name, such as 3.5 or 3.5.1; raise ValueError if it is unknown."""
    requested = ".".join(name.removeprefix("v").split(".")[:2])
    newest: dict[int, int] = {}
    for version, changes in _CHANGES.items():
        newest |= changes
        if version == requested:
            return Release(version, newest)
    raise ValueError(f"unknown release {name}; use one of {', '.join(_CHANGES)}")


def _order(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split("."))
