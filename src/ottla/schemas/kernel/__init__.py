"""The native kernel of schemas: decodes values into the buffers of Arrow columns, without a Python object for each.

`columns` has the buffers, `avro` and `protobuf` the steps that read these encodings. `setup.py` joins them into one
module, `_compiled`, so that the compilers inline calls between them; without it they run uncompiled.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

try:
    from . import _compiled  # type: ignore[attr-defined]
except ImportError:
    _compiled = None

if TYPE_CHECKING or _compiled is None:
    from .avro import DONE, FAILED, FULL, OTHER_SCHEMA, UNFRAMED, FramedRows, Step
    from .columns import COMPILED, BinaryColumn, Column, FixedColumn, ListColumn, StructColumn
else:
    from ._compiled import (
        COMPILED,
        DONE,
        FAILED,
        FULL,
        OTHER_SCHEMA,
        UNFRAMED,
        BinaryColumn,
        Column,
        FixedColumn,
        FramedRows,
        ListColumn,
        Step,
        StructColumn,
    )

__all__ = [
    "COMPILED",
    "DONE",
    "FAILED",
    "FULL",
    "OTHER_SCHEMA",
    "UNFRAMED",
    "BinaryColumn",
    "Column",
    "FixedColumn",
    "FramedRows",
    "ListColumn",
    "Step",
    "StructColumn",
    "compiled",
    "uncompiled",
]


def uncompiled() -> Any:
    """Return the names of the kernel as plain Python, also where it is compiled."""
    from . import avro, columns, protobuf

    return SimpleNamespace(**vars(columns) | vars(avro) | vars(protobuf))


def compiled() -> Any:
    """Return the names of the compiled kernel, or of the uncompiled one if it was not built."""
    return uncompiled() if _compiled is None else _compiled
