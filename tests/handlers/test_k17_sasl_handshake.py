"""SaslHandshake (17) and SaslAuthenticate (36): mechanisms, order, and failures, over a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.k17_sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.messages.k36_sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.security.sasl.plain import plain_token
from ottla.testing import Cluster
from tests.server.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    configs = {"connection.failed.authentication.delay.ms": 0}
    with Cluster(users={"alice": "secret"}, configs=configs) as running:
        yield running


@pytest.fixture
def wire(cluster: Cluster) -> Iterator[Wire]:
    with Wire(cluster.bootstrap) as connected:
        yield connected


@pytest.mark.parametrize("version", [0, 1])
def test_handshake_lists_the_enabled_mechanisms(wire: Wire, version: int) -> None:
    response = wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, version)
    assert response.error_code == ErrorCode.NONE
    assert sorted(response.mechanisms) == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


def test_handshake_with_an_unknown_mechanism_closes_the_connection(wire: Wire) -> None:
    response = wire.ask(SaslHandshakeRequest(mechanism="GSSAPI"), SaslHandshakeResponse, 1)
    assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert wire.closed()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_valid_token_authenticates(wire: Wire, version: int) -> None:
    wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
    request = SaslAuthenticateRequest(auth_bytes=plain_token("alice", "secret"))
    assert wire.ask(request, SaslAuthenticateResponse, version).error_code == ErrorCode.NONE
    assert wire.ask(MetadataRequest(topics=[]), MetadataResponse, 12).brokers


def test_wrong_password_fails_and_closes_the_connection(wire: Wire) -> None:
    wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
    request = SaslAuthenticateRequest(auth_bytes=plain_token("alice", "wrong"))
    assert wire.ask(request, SaslAuthenticateResponse, 2).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert wire.closed()


def test_token_before_the_handshake_closes_the_connection(wire: Wire) -> None:
    wire.request(SaslAuthenticateRequest(auth_bytes=plain_token("alice", "secret")), 2)
    assert wire.closed()


def test_other_requests_before_authentication_close_the_connection(wire: Wire) -> None:
    wire.request(MetadataRequest(topics=[]), 12)
    assert wire.closed()
