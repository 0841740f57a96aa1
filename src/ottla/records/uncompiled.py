"""What the kernel needs to run as plain Python: a stand-in for Cython, and a way to load its source on purpose."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


class cython:  # noqa: N801
    """Stands in for the module of that name where Cython is not installed."""

    compiled = False


def load_uncompiled_kernel() -> ModuleType:
    """The kernel as plain Python, also where the compiled one is what `import` finds; for tests and benchmarks."""
    name = "ottla.records.kernel_uncompiled"
    if name not in sys.modules:
        source = Path(__file__).with_name("kernel.py")
        spec = importlib.util.spec_from_file_location(name, source)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
