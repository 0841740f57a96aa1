"""The message modules are what Apache Kafka's jars say today: nothing was changed by hand, nothing is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .jvm import KAFKA_VERSION

if TYPE_CHECKING:
    from .jvm import Jvm

pytestmark = pytest.mark.interop

TOOL = Path(__file__).resolve().parents[2] / "tools" / "generate_messages.py"


def test_message_modules_are_what_would_be_generated_from_kafkas_jars(kafka_jvm: Jvm) -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "--check", "--version", KAFKA_VERSION, "--jars", str(kafka_jvm.lib)],
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1:] == ["up to date"], done.stdout + done.stderr
