"""Facts about the machine: the memory that this process may use."""

from __future__ import annotations

import contextlib
import functools
import os

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_UNKNOWN = 4 << 30


@functools.cache
def memory_bytes() -> int:
    """Return the memory of the machine or the limit of its container, in bytes; 4 GiB if unknown."""
    total = _UNKNOWN
    with contextlib.suppress(AttributeError, ValueError, OSError):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            return min(total, int(file.read()))
    return total
