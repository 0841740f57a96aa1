"""Sessions of Spark Connect: ottla's formats on a server that may not have ottla.

A Connect session has no optimizer rule (`pushdown`), so that a scan reads all columns that it offers.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

_ACCUMULATOR: Final = "__python_accumulator__"


def connect(remote: str, app_name: str, config: Mapping[str, str]) -> SparkSession:
    """Return a session of a Connect server with ottla's formats; ottla is sent to the server if it has none.

    Raises `SparkSetupError` with what to install if the server cannot run them.
    """
    from ottla.spark.reasons import end_with_sentence, reason
    from ottla.spark.session import SparkSetupError, check_pyspark
    from ottla.spark.shipping import SHIP, ExecutorError

    check_pyspark()
    try:
        from pyspark.sql.connect.session import SparkSession
    except ImportError as error:
        raise SparkSetupError(f"Spark Connect needs pyspark's extra: pip install 'ottla[spark]' ({error})") from error
    settings = {"spark.sql.session.timeZone": "UTC", **config}
    mode = settings.pop(SHIP, "auto")
    builder = SparkSession.builder.remote(remote).appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        session = builder.create()
        session.version  # noqa: B018 - the first request
    except Exception as error:
        raise SparkSetupError(f"no Spark Connect server answers at {remote}: {reason(error)}") from error
    ignore_accumulators(session)
    end_with_sentence()
    if mode == "auto":
        try:
            ship_to_server(session)
        except ExecutorError as error:
            session.stop()
            raise SparkSetupError(str(error)) from error
    register_formats(session)
    return session


def ship_to_server(session: Any) -> None:
    """Add ottla and its small dependencies to the session's artifacts, unless the server has this version of ottla."""
    from ottla import __version__
    from ottla.spark.shipping import OWN, ExecutorError, pack_modules, python_tag

    python, installed, missing = probe_server(session)
    if python != python_tag():
        raise ExecutorError(
            f"the Connect server runs {python} and this client {python_tag()}: Python sources need the same version on "
            f"both; use that Python here, or set spark.pyspark.python of the server"
        )
    if missing:
        raise ExecutorError(f"the Connect server has no {' and no '.join(missing)}: pip install pyarrow on it")
    if installed != __version__:
        archives = pack_modules(OWN)
        session.addArtifacts(*[f"{archive.path}#{archive.name}" for archive in archives], archive=True)


def probe_server(session: Any) -> tuple[str, str | None, list[str]]:
    """Return the server's Python, its version of ottla (None: not installed) and needed packages that it lacks."""
    from ottla.spark.reasons import reason
    from ottla.spark.shipping import ExecutorError, explain_failed_probe

    def look(batches: Iterator[Any]) -> Iterator[Any]:
        import platform
        import sys
        from importlib import metadata

        import pyarrow as pa  # type: ignore[import-untyped]

        for _ in batches:
            pass
        version = ".".join(map(str, sys.version_info[:2]))
        tag = f"{sys.implementation.name}-{version}-{sys.platform}-{platform.machine()}"
        try:
            installed = metadata.version("ottla")
        except metadata.PackageNotFoundError:
            installed = ""
        yield pa.RecordBatch.from_pydict({"python": [tag], "ottla": [installed]})

    look.__module__ = "__main__"  # pickled by value: the server may not have ottla
    try:
        row = session.range(1).mapInArrow(look, "python string, ottla string").collect()[0]
    except Exception as error:
        text = str(error)
        if "No module named 'pyarrow'" in text or "PACKAGE_NOT_INSTALLED" in text:
            return _tag_of_client(), None, ["pyarrow"]
        raise ExecutorError(
            f"the Connect server cannot run Python: {explain_failed_probe(text, reason(error), 'python3')}"
        ) from error
    return row["python"], row["ottla"] or None, []


def _tag_of_client() -> str:
    from ottla.spark.shipping import python_tag

    return python_tag()


def ignore_accumulators(session: Any) -> None:
    """Drop a message that a Python source sends and that the clients of 4.2 and 4.3 reject (UNKNOWN_RESPONSE)."""
    client = session.client
    fetch = client._execute_and_fetch_as_iterator

    def without_accumulators(*arguments: Any, **named: Any) -> Iterator[Any]:
        for response in fetch(*arguments, **named):
            if getattr(response, "name", None) != _ACCUMULATOR:
                yield response

    client._execute_and_fetch_as_iterator = without_accumulators


def register_formats(session: Any) -> None:
    """Register ottla's formats with a Connect session."""
    from ottla.spark.formats import SOURCES

    for source in SOURCES:
        session.dataSource.register(source)


def is_connect(session: Any) -> bool:
    """Return whether a session is one of Spark Connect."""
    module = sys.modules.get("pyspark.sql.connect.session")
    return module is not None and isinstance(session, module.SparkSession)
