"""Delegation tokens: CreateDelegationToken (38), Renew (39), Expire (40) and Describe (41), over a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k17_sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.messages.k36_sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.k38_create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from ottla.protocol.messages.k39_renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from ottla.protocol.messages.k40_expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from ottla.protocol.messages.k41_describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from ottla.security.sasl.plain import plain_token
from ottla.testing import Cluster
from tests.conversations.local_talk import LocalTalk
from tests.server.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def alice() -> Iterator[Wire]:
    users = {"alice": "secret"}
    configs = {"delegation.token.secret.key": "key"}
    with Cluster(users=users, configs=configs) as cluster, Wire(cluster.bootstrap) as wire:
        wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
        token = SaslAuthenticateRequest(auth_bytes=plain_token("alice", "secret"))
        assert wire.ask(token, SaslAuthenticateResponse, 2).error_code == ErrorCode.NONE
        yield wire


def create(wire: Wire, version: int = 3) -> CreateDelegationTokenResponse:
    request = CreateDelegationTokenRequest(max_lifetime_ms=-1)
    return wire.ask(request, CreateDelegationTokenResponse, version)


def tokens(wire: Wire) -> list[str]:
    request = DescribeDelegationTokenRequest(owners=None)
    return [token.token_id for token in wire.ask(request, DescribeDelegationTokenResponse, 3).tokens]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_created_token_belongs_to_the_principal_and_is_described(alice: Wire, version: int) -> None:
    created = create(alice, version)
    assert created.error_code == ErrorCode.NONE
    assert (created.principal_type, created.principal_name) == ("User", "alice")
    assert created.expiry_timestamp_ms <= created.max_timestamp_ms
    assert tokens(alice) == [created.token_id]


def test_renewed_token_expires_after_the_renew_period(alice: Wire) -> None:
    created = create(alice)
    request = RenewDelegationTokenRequest(hmac=created.hmac, renew_period_ms=1_000)
    renewed = alice.ask(request, RenewDelegationTokenResponse, 2)
    assert renewed.error_code == ErrorCode.NONE
    assert renewed.expiry_timestamp_ms < created.expiry_timestamp_ms


def test_expired_token_is_not_described(alice: Wire) -> None:
    created = create(alice)
    request = ExpireDelegationTokenRequest(hmac=created.hmac, expiry_time_period_ms=-1)
    assert alice.ask(request, ExpireDelegationTokenResponse, 2).error_code == ErrorCode.NONE
    assert tokens(alice) == []


def test_unknown_hmac_is_not_found(alice: Wire) -> None:
    renewal = RenewDelegationTokenRequest(hmac=bytes(64))
    assert alice.ask(renewal, RenewDelegationTokenResponse, 2).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    expiry = ExpireDelegationTokenRequest(hmac=bytes(64))
    assert alice.ask(expiry, ExpireDelegationTokenResponse, 2).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_anonymous_client_may_not_create_tokens() -> None:
    local = LocalTalk({"delegation.token.secret.key": "key"})
    response = local.quietly(CreateDelegationTokenRequest(max_lifetime_ms=-1), CreateDelegationTokenResponse)
    assert response.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    local.close()
