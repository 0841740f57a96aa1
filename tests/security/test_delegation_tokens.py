"""Delegation tokens: creation, authentication, renewal, description and expiry, and who may do each."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from ottla.client import Client
from ottla.client.auth import Login, Security
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k38_create_delegation_token import (
    CreatableRenewers,
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
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from ottla.testing import Cluster, VirtualClock
from ottla.testing.security import allow
from tests.security.clusters import client, secured

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("security delegation")  # one worker, one cluster

KEY = {"delegation.token.secret.key": "the cluster's own secret"}
HOUR = 3_600_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with secured(
        acls=[allow("alice", "all", topic="orders"), allow("bob", "create_tokens", user="User:alice")], configs=KEY
    ) as cluster:
        yield cluster


def create(
    who: Client, *, owner: str | None = None, renewers: list[str] | None = None, lifetime_ms: int = -1
) -> CreateDelegationTokenResponse:
    return who.to_any(
        CreateDelegationTokenRequest(
            owner_principal_type="User" if owner else None,
            owner_principal_name=owner,
            renewers=[CreatableRenewers(principal_type="User", principal_name=name) for name in renewers or []],
            max_lifetime_ms=lifetime_ms,
        ),
        CreateDelegationTokenResponse,
    )


def by_token(cluster: Cluster, token: CreateDelegationTokenResponse, mechanism: str = "SCRAM-SHA-256") -> Client:
    secret = base64.b64encode(token.hmac).decode()
    login = Login(mechanism, token.token_id, secret, by_token=True)
    return Client(cluster.bootstrap, timeout=60, security=Security(login=login))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_token_authenticates_its_owner(cluster: Cluster, mechanism: str) -> None:
    with client(cluster, "alice") as alice:
        token = create(alice)
    assert not token.error_code
    with by_token(cluster, token, mechanism) as holder:
        assert [topic.name for topic in holder.topics()] == ["orders"]
        assert create(holder).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_token_with_wrong_hmac_fails(cluster: Cluster) -> None:
    with client(cluster, "alice") as alice:
        token = create(alice)
    token.hmac = b"x" * 64
    with by_token(cluster, token) as thief, pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
        thief.topics()
    token.token_id = "no-such-token"
    with by_token(cluster, token) as thief, pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
        thief.topics()


def test_token_for_another_owner_requires_permission(cluster: Cluster) -> None:
    with client(cluster, "bob") as bob, client(cluster, "alice") as alice:
        made = create(bob, owner="alice")
        assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (0, "alice", "bob")
        assert create(alice, owner="bob").error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED


def described(who: Client, owner: str | None = None) -> set[str]:
    owners = None if owner is None else [DescribeDelegationTokenOwner(principal_type="User", principal_name=owner)]
    response = who.to_any(DescribeDelegationTokenRequest(owners=owners), DescribeDelegationTokenResponse)
    assert not response.error_code
    return {token.token_id for token in response.tokens}


def test_principals_see_their_own_tokens(cluster: Cluster) -> None:
    with client(cluster, "alice") as alice, client(cluster, "bob") as bob, client(cluster, "admin") as admin:
        hers, shared = create(alice).token_id, create(alice, renewers=["bob"]).token_id
        assert {hers, shared} <= described(alice)
        assert shared in described(bob)
        assert hers not in described(bob)
        assert {hers, shared} <= described(admin, "alice")
        assert described(admin, "nobody") == set()


def test_renewers_must_be_users(cluster: Cluster) -> None:
    with client(cluster, "alice") as alice:
        response = alice.to_any(
            CreateDelegationTokenRequest(
                renewers=[CreatableRenewers(principal_type="Group", principal_name="x")], max_lifetime_ms=-1
            ),
            CreateDelegationTokenResponse,
        )
    assert response.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE


def test_owner_and_renewers_renew_and_expire_token(cluster: Cluster) -> None:
    with client(cluster, "alice") as alice, client(cluster, "bob") as bob, client(cluster, "admin") as admin:
        token = create(alice, renewers=["bob"])
        renew = RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=HOUR)
        assert not bob.to_any(renew, RenewDelegationTokenResponse).error_code
        stranger = admin.to_any(renew, RenewDelegationTokenResponse)
        assert stranger.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        expire = ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1)
        assert not alice.to_any(expire, ExpireDelegationTokenResponse).error_code
        gone = alice.to_any(expire, ExpireDelegationTokenResponse)
        assert gone.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    with by_token(cluster, token) as holder, pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
        holder.topics()


def test_expired_token_fails() -> None:
    clock = VirtualClock()
    configs = {**KEY, "connection.failed.authentication.delay.ms": "0"}
    with secured(clock=clock, configs=configs) as cluster, client(cluster, "admin") as admin:
        token = create(admin, lifetime_ms=HOUR)
        assert token.max_timestamp_ms - token.issue_timestamp_ms == HOUR
        with by_token(cluster, token) as holder:
            assert holder.topics()
        cluster.advance(3700)
        with by_token(cluster, token) as holder, pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
            holder.topics()
        cluster.advance(3600)
        assert cluster.call(lambda broker: dict(broker.image.delegation_tokens)) == {}, "it is swept away"


def test_tokens_require_secret_key() -> None:
    with secured() as cluster, client(cluster, "admin") as admin:
        assert create(admin).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    with Cluster(configs=KEY) as anonymous, Client(anonymous.bootstrap, timeout=60) as anybody:
        assert create(anybody).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_token_requires_tokenauth_extension(cluster: Cluster) -> None:
    """librdkafka cannot say that a name is a token's id, so it does not get in by it."""
    with client(cluster, "alice") as alice:
        token = create(alice)
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": token.token_id,
            "sasl.password": base64.b64encode(token.hmac).decode(),
            "message.timeout.ms": 1000,
            "log_level": 0,
        }
    )
    errors = []
    producer.produce("orders", b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(60)
    assert errors[0] is not None
