"""The pages about APIs, metrics and commands say what the code says."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.handlers.registry import apis
from ottla.protocol.api import APIS, request_class

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pages() -> dict[str, Callable[[], str]]:
    """What each page would be today."""
    pages: dict[str, Callable[[], str]] = runpy.run_path(str(ROOT / "tools" / "generate_api_docs.py"))["PAGES"]
    return pages


@pytest.mark.parametrize("name", ["apis.md", "metrics.md", "cli.md"])
def test_generated_pages_are_up_to_date(pages: dict[str, Callable[[], str]], name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == pages[name](), "run make generate"


def test_served_versions_are_broker_versions() -> None:
    """Nothing is advertised that Kafka's brokers do not have, and no version that we cannot read."""
    known = {api.key: api for api in APIS}
    for key, api in apis().items():
        assert "broker" in known[key].listeners, api.name
        assert set(api.versions) <= set(request_class(key).__schema__.versions), api.name
        assert api.versions[-1] <= known[key].max_stable_version, api.name
