"""Run the kernel as plain Python: a stand-in for Cython, and a loader of its source."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


class cython:  # noqa: N801
    """Stands in for the module of that name where Cython is not installed."""

    compiled = False


def load_uncompiled_kernel() -> ModuleType:
    """Return the kernel as plain Python, also where `import` finds the compiled one; for tests and benchmarks."""
    name = "ottla.records.kernel_uncompiled"
    if name not in sys.modules:
        folder = Path(__file__).with_name("kernel")
        execute = _register(name, folder / "__init__.py", is_package=True)
        for part in ("walk", "encode", "keys", "columns"):
            _register(f"{name}.{part}", folder / f"{part}.py")()
        execute()
    return sys.modules[name]


def _register(name: str, source: Path, *, is_package: bool = False) -> Callable[[], None]:
    """Make a module of a source file known by a name; return the function that executes it."""
    spec = importlib.util.spec_from_file_location(name, source, submodule_search_locations=[] if is_package else None)
    assert spec is not None
    loader = spec.loader
    assert loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    if is_package:
        module.__path__ = []  # so that it does not find its compiled module
    return lambda: loader.exec_module(module)
