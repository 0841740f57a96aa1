"""`users=` and `superusers=`: mechanisms and ACLs."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client import Client
from ottla.client.auth import Login, Security
from ottla.protocol.errors import KafkaError
from ottla.testing import Cluster
from ottla.testing.security import User, allow


def logged_in(cluster: Cluster, mechanism: str, name: str, password: str = "secret") -> Client:
    return Client(cluster.bootstrap, timeout=60, security=Security(login=Login(mechanism, name, password)))


def seen(cluster: Cluster, mechanism: str, name: str) -> list[str]:
    with logged_in(cluster, mechanism, name) as client:
        return [topic.name for topic in client.topics()]


def test_user_has_own_mechanism_and_acls() -> None:
    users = [
        User("SCRAM-SHA-256", "alice", "secret", [allow("alice", "read", topic="orders")]),
        ("PLAIN", "bob", "secret"),
        (None, "carol", "secret"),
    ]
    with Cluster(topics=["orders", "bills"], users=users) as cluster:
        assert seen(cluster, "SCRAM-SHA-256", "alice") == ["orders"]
        assert seen(cluster, "PLAIN", "bob") == []
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            assert seen(cluster, mechanism, "carol") == []
        for mechanism, name in (("PLAIN", "alice"), ("SCRAM-SHA-512", "alice"), ("SCRAM-SHA-256", "bob")):
            with pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
                seen(cluster, mechanism, name)


@pytest.mark.parametrize(
    "superusers", [{"root": "secret"}, [User("PLAIN", "root", "secret")], [("PLAIN", "root", "secret"), "alice"]]
)
def test_superusers_are_allowed_everything(superusers: Any) -> None:
    with Cluster(topics=["orders"], users={"alice": "secret"}, superusers=superusers) as cluster:
        assert seen(cluster, "PLAIN", "root") == ["orders"]
        assert seen(cluster, "PLAIN", "alice") == (["orders"] if "alice" in superusers else [])


def test_without_acls_users_are_allowed_everything() -> None:
    with Cluster(topics=["orders"], users=[("SCRAM-SHA-512", "alice", "secret")]) as cluster:
        assert seen(cluster, "SCRAM-SHA-512", "alice") == ["orders"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"users": [("GSSAPI", "alice", "secret")]}, "'GSSAPI' is not one of PLAIN"),
        ({"users": ["alice"]}, "users: write"),
        ({"users": [("PLAIN", "alice")]}, "users: write"),
        ({"users": {"": "secret"}}, "the name not empty"),
        ({"users": {"alice": None}}, "name and password must be strings"),
        ({"users": {"alice": "a"}, "superusers": {"alice": "b"}}, "alice occurs twice"),
        ({"users": {"alice": "a"}, "superusers": "alice"}, "a list of names"),
        ({"users": [("PLAIN", "alice", "a", [allow("bob", "read", topic="t")])]}, "has ACLs of User:bob"),
    ],
)
def test_invalid_users_raise(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Cluster(**options)


def test_password_is_not_in_repr() -> None:
    assert "secret" not in repr(User("PLAIN", "alice", "secret"))
