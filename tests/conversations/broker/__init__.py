"""Conversations about the broker's own APIs, which Apache Kafka and ottla must answer alike.

`tests/interop/test_broker_side_by_side.py` holds them with both brokers and, with OTTLA_WRITE_FIXTURES=1, records the
responses of Kafka in `recorded/`; the tests of the handlers compare ottla with the recordings.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conversations.recording import read_recording
from tests.conversations.side_by_side import differences

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.conversations.side_by_side import Talk, Transcript

RECORDINGS = Path(__file__).parent / "recorded"
SETTINGS_FILE = RECORDINGS / "settings.json"
SCRIPTS: dict[str, Callable[[Talk], None]] = {}
KNOWN_DIFFERENCES: dict[str, dict[str, str]] = {}


def script(
    differs: dict[str, str] | None = None,
) -> Callable[[Callable[[Talk], None]], Callable[[Talk], None]]:
    """Register a conversation; `differs` names the responses that are meant to differ, each with its reason."""

    def register(function: Callable[[Talk], None]) -> Callable[[Talk], None]:
        SCRIPTS[function.__name__] = function
        KNOWN_DIFFERENCES[function.__name__] = differs or {}
        return function

    return register


def load_scripts() -> None:
    """Import all modules with conversations."""
    for _, module, _ in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module}")


def recorded_settings() -> dict[str, str]:
    """Return the broker settings of the recorded Kafka."""
    settings: dict[str, str] = json.loads(SETTINGS_FILE.read_text())
    return settings


def hold(name: str, talk: Talk) -> Transcript:
    """Hold a conversation and return the responses."""
    try:
        talk.clear()
        SCRIPTS[name](talk)
    except Exception as error:
        error.add_note(f"{name} got as far as {next(reversed(talk.transcript), 'nothing')!r}")
        raise
    return dict(talk.transcript)


def without_position(transcript: Mapping[str, object]) -> dict[str, object]:
    """Return a recording by its labels, as scripts write them."""
    return {json.loads(f'"{label[4:]}"'): response for label, response in transcript.items()}


def assert_alike(name: str, expected: Transcript, responses: Transcript) -> None:
    """Assert that two brokers answered alike, except for the listed differences, which must be there."""
    different = differences(expected, responses)
    known = KNOWN_DIFFERENCES[name]
    news = {label: text for label, text in different.items() if label not in known}
    assert not news, "\n".join(f"{label}:\n{text}" for label, text in news.items())
    assert sorted(known) == sorted(different), "a listed difference is gone: remove it from the list"


def assert_as_kafka(name: str, talk: Talk) -> None:
    """Hold a conversation and compare the responses with those that were recorded from Apache Kafka."""
    load_scripts()
    responses = json.loads(json.dumps(hold(name, talk)))
    assert_alike(name, without_position(read_recording(RECORDINGS / f"{name}.txt")), responses)
