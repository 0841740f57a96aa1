"""Secured clusters and client settings that several tests share."""

from __future__ import annotations

from typing import Any

from ottla.client import Client
from ottla.client.auth import Login, Security
from ottla.testing import Cluster

USERS = {"alice": 'alice\'s "secret"', "bob": "bob-secret", "admin": "admin-secret"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def secured(**options: Any) -> Cluster:
    """Return a cluster with SASL and ACLs, and a super user."""
    options.setdefault("users", USERS)
    options.setdefault("superusers", ["admin"])
    options.setdefault("topics", ["orders:1"])
    return Cluster(**options)


def security(name: str, mechanism: str = "PLAIN", password: str | None = None) -> Security:
    return Security(login=Login(mechanism, name, USERS[name] if password is None else password))


def client(cluster: Cluster, name: str, mechanism: str = "PLAIN", password: str | None = None) -> Client:
    return Client(cluster.bootstrap, timeout=60, security=security(name, mechanism, password))


def librdkafka(cluster: Cluster, name: str, mechanism: str = "PLAIN", **more: Any) -> dict[str, Any]:
    """Return the settings of confluent-kafka."""
    return {
        "bootstrap.servers": cluster.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": USERS[name],
        **more,
    }
