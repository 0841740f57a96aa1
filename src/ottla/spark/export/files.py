"""The files of an export, on any file system that Spark can write to, and the journal of its runs.

The journal is `_ottla_export/<run>.json` in the target: a run counts once its entry exists. Readers of a Parquet folder
ignore names that begin with an underscore.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOURNAL: Final = "_ottla_export"


class ExportError(RuntimeError):
    """The export cannot be done as requested; the message says why."""


def loadable(spark: SparkSession, name: str) -> bool:
    """Return whether Spark's JVM has a class."""
    loader = spark.sparkContext._jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    return loader.getResource(f"{name.replace('.', '/')}.class") is not None


class Files:
    """Paths as text, through Hadoop's file systems in Spark's JVM: local folders, hdfs, s3a and others."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm = spark.sparkContext._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._jvm = jvm
        top = self._path(root)
        self._fs = top.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
        self.root: str = self._fs.makeQualified(top).toString().rstrip("/")

    def exists(self, path: str) -> bool:
        """Return whether a path exists."""
        return bool(self._fs.exists(self._path(path)))

    def files(self, folder: str, suffix: str = "") -> list[tuple[str, int]]:
        """Return all files under a folder with their listed, sorted, without names that begin with an underscore."""
        if not self.exists(folder):
            return []
        listed = []
        walk = self._fs.listFiles(self._path(folder), True)
        while walk.hasNext():
            status = walk.next()
            path = status.getPath().toString()
            inside = path[len(folder) :].lstrip("/")
            hidden = any(part.startswith(("_", ".")) for part in inside.split("/"))
            if not hidden and path.endswith(suffix):
                listed.append((path, int(status.getLen())))
        return sorted(listed)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted."""
        if not self.exists(folder):
            return []
        return sorted(status.getPath().getName() for status in self._fs.listStatus(self._path(folder)))

    def move(self, source: str, target: str) -> None:
        """Rename a file; create the folder of the target."""
        self._fs.mkdirs(self._path(target.rsplit("/", 1)[0]))
        if not self._fs.rename(self._path(source), self._path(target)):
            raise OSError(f"{source} could not be moved to {target}")

    def delete(self, path: str) -> None:
        """Delete a file or a folder, if it exists."""
        self._fs.delete(self._path(path), True)

    def read(self, path: str) -> str:
        """Return the text of a small file."""
        stream = self._fs.open(self._path(path))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Write a small file atomically."""
        part = self._path(f"{path}.part")
        stream = self._fs.create(part, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        if not self._fs.rename(part, self._path(path)):
            raise OSError(f"{path} could not be written")


@dataclass(slots=True)
class Entry:
    """One run in the journal: what it wrote, and where the next one begins."""

    run: int
    kind: str
    topic: str
    topic_id: str | None
    offsets: dict[str, int]
    rows: int
    schema: str | None
    settings: dict[str, Any]
    replaced: list[str]


class Journal:
    """The runs of an export, in order."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._folder = f"{files.root}/{JOURNAL}"

    def last(self) -> Entry | None:
        """Return the last run that counts."""
        return self._newest(".json")

    def add(self, entry: Entry) -> None:
        """Add the entry of a run, so that it counts."""
        self._write(entry, ".json")
        self._files.delete(self._entry(entry.run, ".prepared"))

    def prepared(self) -> Entry | None:
        """Return the run that was prepared and may not be published, if the last one ended so."""
        prepared, last = self._newest(".prepared"), self.last()
        return None if prepared is None or (last is not None and last.run >= prepared.run) else prepared

    def prepare(self, entry: Entry) -> None:
        """Record that the staged files of a run must be published, by this run or the next."""
        self._write(entry, ".prepared")

    def staging(self, run: int) -> str:
        """Return the folder into which a run writes before it counts."""
        return f"{self._folder}/staging-{run:08d}"

    def _newest(self, suffix: str) -> Entry | None:
        names = [name.removesuffix(suffix) for name in self._files.names(self._folder) if name.endswith(suffix)]
        numbers = [int(name) for name in names if name.isdigit()]
        if not numbers:
            return None
        return Entry(**json.loads(self._files.read(self._entry(max(numbers), suffix))))

    def _write(self, entry: Entry, suffix: str) -> None:
        fields = {name: getattr(entry, name) for name in Entry.__slots__}
        self._files.write(self._entry(entry.run, suffix), json.dumps(fields, sort_keys=True))

    def _entry(self, run: int, suffix: str) -> str:
        return f"{self._folder}/{run:08d}{suffix}"


def publish(files: Files, staging: str, run: int) -> int:
    """Move a run's Parquet files into the target, under names that hold the run; return how many there were."""
    staged = files.files(staging, ".parquet")
    for number, (path, _) in enumerate(staged):
        folder = path[len(staging) :].rsplit("/", 1)[0]
        files.move(path, f"{files.root}{folder}/export-{run:08d}-{number:05d}.parquet")
    return len(staged)


def clean_up(files: Files, journal: Journal, last: Entry | None) -> None:
    """Delete the files of an incomplete run, and those that the last one replaced."""
    counted = 0 if last is None else last.run
    for name in files.names(f"{files.root}/{JOURNAL}"):
        if name.startswith("staging-") or name.endswith((".part", ".prepared")):
            files.delete(f"{files.root}/{JOURNAL}/{name}")
    for path, _ in files.files(files.root, ".parquet"):
        name = path.rsplit("/", 1)[1]
        if name.startswith("export-") and int(name.split("-")[1]) > counted:
            files.delete(path)
    for path in last.replaced if last is not None else ():
        files.delete(f"{files.root}/{path}")
