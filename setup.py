"""Builds the native kernels when Cython and a C compiler are there; without them the same code runs uncompiled."""

import ast
import os
from pathlib import Path

from setuptools import Extension, setup

# The parts of each kernel, in the order in which they need each other.
KERNELS = {
    "ottla.records.kernel": ("walk", "encode", "keys", "columns"),
    "ottla.schemas.kernel": ("columns", "avro", "protobuf"),
}
BUILD = Path("build/kernel")
# Python's own flags, repeated because the kernels count on them: integers wrap around as they do in Java.
FLAGS = ["/O2"] if os.name == "nt" else ["-O3", "-fwrapv", "-g0"]
HEADER = """# cython: language_level=3, annotation_typing=False
# cython: boundscheck=False, wraparound=False, initializedcheck=False
import struct
import sys
import cython
from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
from cython.cimports.libc.string import memcpy
"""
LAST_TYPE = "ctypedef long long i64\n"


def extensions() -> list[Extension]:
    """Return the native modules of ottla, or nothing where they cannot be translated."""
    if not all(_folder(package).exists() for package in KERNELS):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    kernels = [
        Extension(f"{package}._compiled", [str(join_parts(package))], extra_compile_args=FLAGS) for package in KERNELS
    ]
    built: list[Extension] = cythonize(kernels, language_level=3, include_path=[str(BUILD)])
    for extension in built:
        extension.optional = True  # cythonize forgets it when it is set before
    return built


def join_parts(package: str) -> Path:
    """Join the parts of a kernel into one source, so that calls between them are inlined; return its path."""
    names = package.split(".")
    for depth in range(1, len(names) + 1):
        folder = BUILD.joinpath(*names[:depth])
        folder.mkdir(parents=True, exist_ok=True)
        folder.joinpath("__init__.py").touch()
    target = BUILD.joinpath(*names, "_compiled.py")
    sources = [_folder(package) / f"{part}.py" for part in KERNELS[package]]
    _write(target, HEADER + "".join(_without_imports(source.read_text(encoding="utf-8")) for source in sources))
    types = [source.with_suffix(".pxd").read_text(encoding="utf-8") for source in sources]
    _write(target.with_suffix(".pxd"), types[0] + "".join(text.partition(LAST_TYPE)[2] for text in types[1:]))
    return target


def _folder(package: str) -> Path:
    return Path("src", *package.split("."))


def _without_imports(text: str) -> str:
    """Return what follows the docstring and the imports of a part."""
    nodes = ast.parse(text).body
    header = [node for node in nodes[1:] if isinstance(node, ast.Import | ast.ImportFrom | ast.Try | ast.If)]
    return "\n".join(text.splitlines()[header[-1].end_lineno :]) + "\n"


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


setup(ext_modules=extensions())
