"""The CRC-32C that record batches and producer snapshots carry, computed in hardware."""

from __future__ import annotations

import importlib.util
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Crc(Protocol):
    """A checksum."""

    def __call__(self, data: ReadableBuffer, value: int = 0, /) -> int:
        """The checksum of bytes, or of more bytes behind those whose checksum is `value`."""
        ...


def _load() -> Crc:
    """The package's native function without the package's own start, which reads the metadata of installed packages.

    That alone would be a tenth of the time a broker needs to be there.
    """
    package = importlib.util.find_spec("crc32c")
    places = None if package is None else package.submodule_search_locations
    native = None if places is None else PathFinder.find_spec("crc32c._crc32c", places)
    if native is None or native.loader is None:
        from crc32c import crc32c

        return crc32c
    module = importlib.util.module_from_spec(native)
    native.loader.exec_module(module)
    found: Crc = module.crc32c
    return found


crc32c = _load()
