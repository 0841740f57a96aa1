"""Builds the native kernel when Cython and a C compiler are there; without them ottla runs the same file uncompiled."""

from pathlib import Path

from setuptools import Extension, setup

KERNEL = "src/ottla/records/kernel.py"


def extensions() -> list[Extension]:
    """The one native module of ottla, or nothing where it cannot be translated."""
    if not Path(KERNEL).exists():
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    kernel = Extension("ottla.records.kernel", [KERNEL], extra_compile_args=["-O3"], optional=True)
    return cythonize([kernel], language_level=3)


setup(ext_modules=extensions())
