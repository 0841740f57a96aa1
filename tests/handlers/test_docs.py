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


# Other commands have pages and tests of their own; what is said of them here follows at the next `generate`.
COMMANDS = ("serve", "topic", "produce", "consume", "config", "cluster", "group", "txn")


@pytest.fixture(scope="module")
def pages() -> dict[str, Callable[[], str]]:
    """What each page would be today."""
    found: dict[str, Callable[[], str]] = runpy.run_path(str(ROOT / "tools" / "generate_api_docs.py"))["PAGES"]
    return found


@pytest.mark.parametrize("name", ["apis.md", "metrics.md"])
def test_the_generated_pages_are_up_to_date(pages: dict[str, Callable[[], str]], name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == pages[name](), "run tools/generate_api_docs.py"


def test_the_page_of_commands_is_up_to_date(pages: dict[str, Callable[[], str]]) -> None:
    assert sections((ROOT / "docs" / "cli.md").read_text()) == sections(pages["cli.md"]()), (
        "run tools/generate_api_docs.py"
    )


def sections(page: str) -> dict[str, str]:
    """What the page says of each command of the broker's room."""
    parts = (part.partition("\n") for part in page.split("\n## "))
    found = {title: text for title, _, text in parts if title.split(" ")[1:2] and title.split(" ")[1] in COMMANDS}
    assert len(found) > 20
    return found


def test_what_is_served_is_declared_and_a_brokers() -> None:
    """Nothing is advertised that Kafka's brokers do not have, and no version that we cannot read."""
    known = {api.key: api for api in APIS}
    for key, api in apis().items():
        assert "broker" in known[key].listeners, api.name
        assert set(api.versions) <= set(request_class(key).__schema__.versions), api.name
        assert api.versions[-1] <= known[key].max_stable_version, api.name
