"""Open a client from `kafka.*` options, on the driver and on executors; each source checks which options it accepts."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ottla.client.auth import security_from_properties
from ottla.client.client import Client
from ottla.client.connection import ConnectionFailedError
from ottla.spark.options import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ottla.client.auth import Security

SECURITY_PREFIXES: Final = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")


def security_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return the security options by their names in Kafka's clients."""
    return {
        name.lower().removeprefix("kafka."): value
        for name, value in options.items()
        if name.lower().startswith(SECURITY_PREFIXES)
    }


def open_client(
    bootstrap: str, settings: Mapping[str, str], *, client_id: str, timeout: float, rack: str = ""
) -> Client:
    """Return a client that is not connected yet; `rack` selects the closest replica for fetches."""
    security = _security(settings)
    try:
        return Client(bootstrap, client_id=client_id, timeout=timeout, security=security, rack=rack)
    except ValueError as error:
        raise OptionError(
            f"kafka.bootstrap.servers: {error}, for example localhost:9092 or one:9092,two:9092"
        ) from error


@contextmanager
def reachable(bootstrap: str) -> Iterator[None]:
    """Turn a failed connection into an `OptionError` that names the option."""
    try:
        yield
    except ConnectionFailedError as error:
        raise OptionError(f"no broker answers at {bootstrap} (kafka.bootstrap.servers): {error}") from error


def _security(settings: Mapping[str, str]) -> Security | None:
    try:
        return security_from_properties(settings)
    except ValueError as error:
        raise OptionError(f"kafka.{error}") from error
