"""Ship ottla, its compiled kernel and its dependencies to executors that do not have them.

Each archive is a zip of installed packages. Spark copies it to every executor and unpacks it there; Python workers find
the folder on their path before their own site-packages, so that they run the driver's version of ottla.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import sysconfig
import tempfile
import time
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import ottla

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

SHIP: Final = "spark.ottla.ship"
"""Spark property: `auto` (the default) ships what executors need, `false` nothing."""
OWN: Final = ("cramjam", "crc32c", "google-re2", "regex", "xxhash", "fastavro", "fsspec", "protobuf")
ARROW: Final = ("pyarrow",)
_NEEDED: Final = ("pyarrow",)
_SKIPPED_PARTS: Final = frozenset({"__pycache__", "tests", "include", "testing.dist-info"})
_SKIPPED_SUFFIXES: Final = (".pyc", ".pyx", ".pxd", ".pxi", ".c", ".cpp", ".h", ".pyi")
_COMPRESSION_LEVEL: Final = 1


@dataclass(frozen=True, slots=True)
class Archive:
    """A zip of packages: the name of its folder on executors, its file and how long it took to build (0: cached)."""

    name: str
    path: Path
    seconds: float

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self.path.stat().st_size


@dataclass(frozen=True, slots=True)
class Executor:
    """What a probe found on an executor's machine."""

    host: str
    missing: tuple[str, ...]
    platform: str


def python_tag() -> str:
    """Return what a compiled package depends on: interpreter, version, system and processor.

    >>> python_tag().startswith("cpython-3")
    True
    """
    version = ".".join(map(str, sys.version_info[:2]))
    return f"{sys.implementation.name}-{version}-{sys.platform}-{platform.machine()}"


def ship(spark: SparkSession) -> list[Archive]:
    """Send ottla to all executors of a session, and pyarrow if one of them lacks it; return what was sent.

    Raises `ExecutorError` with what to install if an executor cannot run it.
    """
    context = spark.sparkContext
    archives = [_send(context, pack("ottla", OWN, own_package=True))]
    executors = probe(context)
    problem = unusable(executors, python_tag())
    if problem is not None:
        raise ExecutorError(problem)
    if any(executor.missing for executor in executors):
        archives.append(_send(context, pack("pyarrow", ARROW)))
    return archives


class ExecutorError(RuntimeError):
    """Executors cannot run ottla; the message says what to install where."""


def unusable(executors: list[Executor], tag: str) -> str | None:
    """Return what to install if an executor cannot load the driver's compiled packages; None if all can."""
    for executor in executors:
        if executor.platform != tag:
            return (
                f"executor {executor.host} runs {executor.platform} and the driver {tag}: compiled packages of one do "
                f"not load in the other; run the driver on the same, or install ottla[spark] on the executors and set "
                f"{SHIP}=false"
            )
    return None


def probe(context: Any) -> list[Executor]:
    """Return what executors have: one entry for each host that ran a task of the probe."""
    from ottla.spark.reasons import reason

    tasks = max(2, 2 * int(context.defaultParallelism))
    try:
        rows = context.parallelize(range(tasks), tasks).mapPartitions(_probe_task(_NEEDED)).collect()
    except Exception as error:
        raise ExecutorError(explain_failed_probe(str(error), reason(error), context.pythonExec)) from error
    return sorted({Executor(host, tuple(missing), tag) for host, missing, tag in rows}, key=lambda row: row.host)


def explain_failed_probe(text: str, reason: str, python: str) -> str:
    """Return one sentence about a probe that failed: what is missing on the executors."""
    version = ".".join(map(str, sys.version_info[:2]))
    if "Cannot run program" in text:
        return (
            f"executors have no {python}: install Python {version} on them, or set spark.pyspark.python to their "
            f"Python {version}"
        )
    if "PYTHON_VERSION_MISMATCH" in text:
        return (
            f"{python} of the executors is another version than the driver's Python {version}: set "
            f"spark.pyspark.python to a Python {version} of the executors"
        )
    return f"executors cannot run Python tasks: {reason}"


def _probe_task(needed: tuple[str, ...]) -> Callable[[Any], Iterator[tuple[str, list[str], str]]]:
    """Return the function of a probe's tasks; it must not refer to ottla, which the executor may not have."""

    def look(_: Any) -> Iterator[tuple[str, list[str], str]]:
        import importlib.util
        import platform
        import socket
        import sys

        version = ".".join(map(str, sys.version_info[:2]))
        tag = f"{sys.implementation.name}-{version}-{sys.platform}-{platform.machine()}"
        missing = [name for name in needed if importlib.util.find_spec(name) is None]
        yield socket.gethostname(), missing, tag

    look.__module__ = "__main__"  # pickled by value
    return look


def _send(context: Any, archive: Archive) -> Archive:
    folder = f"ottla-packages-{archive.name}"
    if folder not in context._python_includes:
        context.addArchive(f"{archive.path}#{folder}")
        context._python_includes.append(folder)  # as addPyFile does, which takes no folder
    return archive


def pack(name: str, distributions: tuple[str, ...], *, own_package: bool = False) -> Archive:
    """Return a zip of installed distributions, and of ottla itself; unchanged packages are zipped once.

    A distribution that is not installed is left out: its feature does not work on the driver either.
    """
    files = dict(_files(distributions))
    if own_package:
        files |= dict(_own_files())
    return _zip(name, files)


def _zip(name: str, files: dict[str, Path]) -> Archive:
    """Write files to a zip of the cache, named by a hash of their sizes and times, unless it is there."""
    digest = hashlib.sha256(python_tag().encode())
    for target, source in sorted(files.items()):
        status = source.stat()
        digest.update(f"{target}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    path = cache_folder() / f"{name}-{digest.hexdigest()[:16]}.zip"
    if path.exists():
        return Archive(name, path, 0.0)
    began = time.perf_counter()
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part,
        zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION_LEVEL) as zipped,
    ):
        for target, source in sorted(files.items()):
            zipped.write(source, target)
    Path(part.name).replace(path)
    _remove_older(path, name)
    return Archive(name, path, time.perf_counter() - began)


def pack_modules(distributions: tuple[str, ...]) -> list[Archive]:
    """Return one zip for ottla and for each package of the distributions, without the package's own folder.

    Spark Connect has no way to add a folder to the path; it unpacks an archive called `x` to the folder `x`, which
    Python then imports as the package `x`.
    """
    packages: dict[str, dict[str, Path]] = {}
    for target, source in (*_own_files(), *_files(distributions)):
        package, _, rest = target.partition("/")
        if rest and not package.endswith((".dist-info", ".libs")):
            packages.setdefault(package, {})[rest] = source
    return [_zip(package, files) for package, files in packages.items()]


def cache_folder() -> Path:
    """Return the folder of built archives: below XDG_CACHE_HOME, or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "ottla" / "spark"


def _remove_older(newest: Path, name: str) -> None:
    """Keep the three newest archives of a name: drivers of other environments may still send theirs."""
    older = sorted(newest.parent.glob(f"{name}-*.zip"), key=lambda path: path.stat().st_mtime, reverse=True)[3:]
    for path in older:
        path.unlink(missing_ok=True)


def _own_files() -> Iterator[tuple[str, Path]]:
    """Yield the files of ottla, compiled kernel included, from wherever it is imported."""
    root = Path(ottla.__file__).parent
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for path in root.rglob("*"):
        relative = path.relative_to(root)
        is_extension = path.suffix in (".so", ".pyd") and path.name.endswith(suffix)
        is_source = path.suffix == ".py" or path.name in ("py.typed", "NarrowScans.java")
        if path.is_file() and (is_extension or is_source) and not _SKIPPED_PARTS & set(relative.parts):
            yield f"ottla/{relative.as_posix()}", path


def _files(distributions: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    for name in distributions:
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.parts[0] == ".." or _SKIPPED_PARTS & set(file.parts) or file.name.endswith(_SKIPPED_SUFFIXES):
                continue
            path = Path(str(file.locate()))
            if path.is_file():
                yield file.as_posix(), path
