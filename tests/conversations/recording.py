"""Recordings of Apache Kafka's half of a conversation: one text file each, one line per request and per response.

    > JoinGroup v9 {"group_id": "two-members", "session_timeout_ms": 600000}
    < {"error_code": "MEMBER_ID_REQUIRED", "member_id": "side-by-side-<uuid> 1"}
    = records of two-members
    + ["GroupMetadata v4", {}, {"protocol_type": "consumer"}]

`>` is a request without the fields that have their default, `=` a fact that a script noted, `<` the response or the
fact, `+` one of its entries where it is a list. Steps have no numbers: an inserted step changes no other line.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tests.conversations.side_by_side import assert_alike

if TYPE_CHECKING:
    from pathlib import Path

Transcript = dict[str, Any]
_NUMBER = re.compile(r"^(producers: )?\d{3} ")


def write_recording(path: Path, transcript: Transcript) -> None:
    """Write a conversation to its file."""
    lines = []
    for label, response in _ordered(transcript):
        step = _step(label)
        lines.append(f"{'>' if _is_request(step) else '='} {step}")
        if isinstance(response, list):
            lines += [f"+ {_json(entry)}" for entry in response]
        else:
            lines.append(f"< {_json(response)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def read_recording(path: Path) -> Transcript:
    """Return the steps of a recorded conversation, numbered by position."""
    transcript: Transcript = {}
    label = ""
    for line in path.read_text().splitlines():
        mark, text = line[0], line[2:]
        if mark in ">=":
            label = f"{len(transcript) + 1:03} {text}"
            transcript[label] = []
        elif mark == "<":
            transcript[label] = json.loads(text)
        else:
            transcript[label].append(json.loads(text))
    return transcript


def assert_as_recorded(folder: Path, name: str, transcript: Transcript, broker: str = "ottla") -> None:
    """Assert that a broker was sent the recorded requests and answered like Apache Kafka."""
    assert_alike(
        read_recording(folder / f"{name}.txt"),
        {
            f"{position:03} {_step(label)}": response
            for position, (label, response) in enumerate(_ordered(transcript), 1)
        },
        f"{name}: ",
        who=("the recording of Kafka", broker),
    )


def _ordered(transcript: Transcript) -> list[tuple[str, Any]]:
    """Return the numbered steps in their order, then what the logs hold, by name: its order is that of made-up ids."""
    steps = list(json.loads(json.dumps(transcript)).items())
    numbered = [step for step in steps if _NUMBER.search(step[0])]
    return numbered + sorted(step for step in steps if not _NUMBER.search(step[0]))


def _step(label: str) -> str:
    step = _NUMBER.sub(r"\1", label)
    return step if _is_request(step) else _json(step)[1:-1]  # a group's name may have line breaks


def _is_request(step: str) -> bool:
    return re.match(r"(producers: )?\w+ v\d+ \{", step) is not None


def _json(value: object) -> str:
    return json.dumps(value)
