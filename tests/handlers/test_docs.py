"""The pages about APIs, metrics and commands say what the code says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ottla.handlers.registry import apis
from ottla.protocol.api import APIS, request_class

ROOT = Path(__file__).resolve().parents[2]


def test_the_generated_pages_are_up_to_date() -> None:
    tool = ROOT / "tools" / "generate_api_docs.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False)
    assert done.stdout == "up to date\n", done.stdout + done.stderr


def test_what_is_served_is_declared_and_a_brokers() -> None:
    """Nothing is advertised that Kafka's brokers do not have, and no version that we cannot read."""
    known = {api.key: api for api in APIS}
    for key, api in apis().items():
        assert "broker" in known[key].listeners, api.name
        assert set(api.versions) <= set(request_class(key).__schema__.versions), api.name
        assert api.versions[-1] <= known[key].max_stable_version, api.name
