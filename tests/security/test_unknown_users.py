"""Unknown SCRAM users and delegation tokens look like known ones, after restarts and on all nodes."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

import pytest

from ottla.protocol.messages.k17_sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.messages.k36_sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.record_schemas.metadata import UserScramCredentialRecord
from ottla.testing import Cluster
from tests.server.wire import Wire

if TYPE_CHECKING:
    from pathlib import Path

MECHANISM = "SCRAM-SHA-512"
CHALLENGE = re.compile(r"r=[^,]+,s=([^,]+),i=([0-9]+)")
KAFKA_SALT = re.compile(rb"[0-9a-z]{20,26}")


def challenge(address: str, name: str, extensions: str = "") -> tuple[bytes, int]:
    """Return salt and iterations that the broker sends to a user."""
    with Wire(address) as wire:
        wire.ask(SaslHandshakeRequest(mechanism=MECHANISM), SaslHandshakeResponse, 1)
        first = SaslAuthenticateRequest(auth_bytes=f"n,,n={name},r=clientnonce{extensions}".encode())
        response = wire.ask(first, SaslAuthenticateResponse, 2)
    match = CHALLENGE.fullmatch(response.auth_bytes.decode())
    assert match is not None
    return base64.b64decode(match[1]), int(match[2])


def test_challenge_of_unknown_user_is_stable_over_restarts_and_nodes(tmp_path: Path) -> None:
    seen = set()
    for _ in range(2):
        with Cluster(3, data_dir=str(tmp_path / "data"), users={"alice": "secret"}) as cluster:
            seen |= {challenge(address, "mallory") for address in cluster.bootstrap.split(",")}
    assert len(seen) == 1
    assert KAFKA_SALT.fullmatch(seen.pop()[0])


@pytest.mark.parametrize("extensions", ["", ",tokenauth=true"])
def test_challenges_of_unknown_names_differ(extensions: str) -> None:
    with Cluster(users={"alice": "secret"}) as cluster:
        seen = {challenge(cluster.bootstrap, f"user-{number}", extensions) for number in range(20)}
    assert len({salt for salt, _ in seen}) == 20
    assert all(KAFKA_SALT.fullmatch(salt) for salt, _ in seen)


def test_unknown_user_has_the_iterations_of_the_known_users() -> None:
    with Cluster(users={"alice": "secret"}) as cluster:
        assert challenge(cluster.bootstrap, "mallory")[1] == 4096
        record = UserScramCredentialRecord(
            name="alice", mechanism=2, salt=b"s", stored_key=b"k", server_key=b"k", iterations=8192
        )
        cluster.call(lambda running: running.change([record]))
        assert challenge(cluster.bootstrap, "mallory")[1] == 8192
        assert challenge(cluster.bootstrap, "mallory", ",tokenauth=true")[1] == 4096
