"""The CRC-32C of record batches and producer snapshots, computed in hardware."""

from __future__ import annotations

import importlib.util
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Crc(Protocol):
    """The checksum function."""

    def __call__(self, data: ReadableBuffer, value: int = 0, /) -> int:
        """Return the checksum of bytes; `value` is the checksum of the bytes before them."""
        ...


def _load() -> Crc:
    """Return the native function of the crc32c package without importing the package.

    Its import reads the metadata of all installed packages, a tenth of a broker's start.
    """
    package = importlib.util.find_spec("crc32c")
    locations = None if package is None else package.submodule_search_locations
    native = None if locations is None else PathFinder.find_spec("crc32c._crc32c", locations)
    if native is None or native.loader is None:
        from crc32c import crc32c

        return crc32c
    module = importlib.util.module_from_spec(native)
    native.loader.exec_module(module)
    function: Crc = module.crc32c
    return function


crc32c = _load()
