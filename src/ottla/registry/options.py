"""The port of a registry, checked without loading the registry."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

from ottla.server.web_options import parse_web_options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.server.web_options import WebOptions

DEFAULT_PORT: Final = 8081
PACKAGES: Final = {"jsonschema": "jsonschema", "google.protobuf": "protobuf"}


def registry_options(option: str, text: str, names: Iterable[str] = ()) -> WebOptions:
    """Return the options of `[HOST:]PORT`; ValueError if it, or a package that a registry needs, is missing."""
    options = parse_web_options(option, text, allowed_hosts=names)
    missing = [name for module, name in PACKAGES.items() if not _is_installed(module)]
    if missing:
        raise ValueError(f"{option} requires {' and '.join(missing)}: pip install 'ottla[registry]'")
    return options


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
