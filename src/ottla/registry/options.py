"""The port, users and TLS of a registry, checked without loading the registry."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ottla.server.web_options import parse_web_options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.security.tls import TlsSettings
    from ottla.server.web_options import WebOptions

DEFAULT_PORT: Final = 8081
PACKAGES: Final = {"jsonschema": "jsonschema", "google.protobuf": "protobuf"}
REGISTRY_PRINCIPAL: Final = "Internal:schema-registry"
"""The principal of a registry that runs in the process of its broker."""


def registry_options(
    option: str, text: str, names: Iterable[str] = (), *, tls: TlsSettings | None = None
) -> WebOptions:
    """Return the options of `[HOST:]PORT`; ValueError if it, or a package that a registry needs, is missing."""
    options = parse_web_options(option, text, allowed_hosts=names)
    missing = [name for module, name in PACKAGES.items() if not _is_installed(module)]
    if missing:
        raise ValueError(f"{option} requires {' and '.join(missing)}: pip install 'ottla[registry]'")
    return replace(options, tls=tls)


def tls_settings(certificate: str | None, key: str | None, client_ca: str | None) -> TlsSettings | None:
    """Return the settings of PEM files; None without any. ValueError if they cannot be used together."""
    if certificate is None:
        if key is not None or client_ca is not None:
            raise ValueError("--tls-key and --tls-client-ca require --tls-certificate")
        return None
    from ottla.security.tls import TlsSettings, server_context

    settings = TlsSettings(
        keystore_type="PEM",
        keystore_location=certificate if key is None else None,
        keystore_chain=None if key is None else _read(certificate),
        keystore_key=None if key is None else _read(key),
        truststore_type="PEM",
        truststore_location=client_ca,
        client_auth="none" if client_ca is None else "required",
    )
    try:
        server_context(settings)
    except ValueError as error:
        raise ValueError(f"--tls-certificate {certificate}: {error}") from None
    return settings


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
