"""The page of configs is current, and each config has one sentence of documentation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ottla.cluster.configs import BY_RESOURCE, ConfigKey

ROOT = Path(__file__).parents[3]
KEYS = [key for keys in BY_RESOURCE.values() for key in keys.values()]


def test_config_page_is_current() -> None:
    command = [sys.executable, str(ROOT / "tools" / "generate_config_docs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT / "src")})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_every_config_has_one_sentence_of_documentation(key: ConfigKey) -> None:
    assert key.doc[0].isupper()
    assert key.doc.endswith(".")
    assert len(key.doc) < 240
