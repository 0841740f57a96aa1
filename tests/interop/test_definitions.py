"""The message modules equal those generated from Apache Kafka's jars."""

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


def test_message_modules_equal_generated_ones(kafka_jvm: Jvm) -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "--check", "--version", KAFKA_VERSION, "--jars", str(kafka_jvm.lib)],
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1:] == ["up to date"], done.stdout + done.stderr
