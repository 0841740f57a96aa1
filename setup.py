"""Builds the native kernel when Cython and a C compiler are there; without them ottla runs the same file uncompiled."""

import os
from pathlib import Path

from setuptools import Extension, setup

KERNEL = "src/ottla/records/kernel.py"
# Python's own flags, repeated because the kernel counts on them: integers wrap around as they do in Java.
FLAGS = ["/O2"] if os.name == "nt" else ["-O3", "-fwrapv", "-g0"]


def extensions() -> list[Extension]:
    """The one native module of ottla, or nothing where it cannot be translated."""
    if not Path(KERNEL).exists():
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    kernel = Extension("ottla.records.kernel", [KERNEL], extra_compile_args=FLAGS)
    built: list[Extension] = cythonize([kernel], language_level=3)
    for extension in built:
        extension.optional = True  # cythonize forgets it when it is set before
    return built


setup(ext_modules=extensions())
