"""Every API, requested by every kind of principal, responds as Apache Kafka 4.3.1 did (see matrix.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ottla.handlers.access import EVERYBODY, Access
from ottla.handlers.registry import apis
from ottla.testing import Cluster
from tests.security.matrix import CASES, KINDS, SETTINGS, cell, run_matrix

pytestmark = pytest.mark.xdist_group("security matrix")  # one worker, one cluster

RECORDED = json.loads((Path(__file__).parent / "recorded" / "matrix.json").read_text())
# What everybody may ask, or what only tells the caller about the caller's own tokens.
OPEN = {17, 18, 36, 39, 40, 60}
AUTHORIZATION_ERRORS = {29, 30, 31, 53, 65}


@pytest.fixture(scope="module")
def responses() -> dict[str, dict[str, Any]]:
    with Cluster(configs={**SETTINGS, "listeners": "SASL_PLAINTEXT://127.0.0.1:0"}) as cluster:
        host, _, port = cluster.bootstrap.rpartition(":")
        return run_matrix(host, int(port))


@pytest.mark.parametrize("case", [case.name for case in CASES])
def test_acl_errors_equal_kafkas(responses: dict[str, dict[str, Any]], case: str) -> None:
    assert responses[case] == RECORDED[case]


def test_recording_covers_the_matrix() -> None:
    assert set(RECORDED) == {case.name for case in CASES}
    assert all(set(entry) == set(KINDS) for entry in RECORDED.values())


def test_matrix_covers_every_api_with_acl_check() -> None:
    requested = {case.ask(cell(case, "none")).__schema__.api_key for case in CASES}
    not_asked = {key: api.name for key, api in apis().items() if key not in requested and api.acl is not EVERYBODY}
    assert not not_asked, f"give {not_asked} a row in tests/security/matrix.py and record Kafka's answers"


@pytest.mark.parametrize("key", sorted(apis()))
def test_every_handler_declares_its_acl_operations(key: int) -> None:
    declared = apis()[key].acl
    assert isinstance(declared, Access)
    if declared is EVERYBODY:
        assert key in OPEN, f"API {key} is open to everybody: is it meant to be?"
    else:
        assert declared.needs


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.needs(cell(case, "none"))], ids=lambda entry: entry.name
)
def test_denied_principal_cannot_probe_names(case: Any) -> None:
    """The answer for something that exists and the one for something that does not are the same, but for the name."""

    def told(kind: str) -> str:
        own = cell(case, kind)
        text = json.dumps(RECORDED[case.name][kind], sort_keys=True)
        return text.replace(own.topic, "NAME").replace(own.missing, "NAME")

    entries = [name for name in _entries(json.loads(told("none"))) if name.get("name") == "NAME"]
    assert all(entry == entries[0] for entry in entries)


def _entries(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [entry for element in value for entry in _entries(element)]
    if isinstance(value, dict):
        return [value, *(entry for entry in value.values() for entry in _entries(entry))]
    return []
