"""Users, rights by subject and TLS of a registry."""

from __future__ import annotations

import os
import ssl
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from ottla.registry.access import RegistryAccess, Right, SubjectAcl, read_access, subject_acl
from ottla.testing import Cluster
from ottla.testing.security import User, allow, deny

from .http_client import Http

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INT = '"int"'
USERS = {"admin": "a", "orders": "o", "reader": "r", "nobody": "n"}
ACLS = [
    allow("orders", "write", subject="orders-", prefixed=True),
    allow("reader", "read", subject="*"),
    deny("reader", "read", subject="secret-value"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(registry=True, users=USERS, superusers=["admin"], acls=ACLS) as cluster:
        yield cluster


@pytest.fixture
def http(cluster: Cluster) -> dict[str, Http]:
    cluster.reset()
    return {name: Http(cluster.registry_url, f"{name}:{password}") for name, password in USERS.items()}


@pytest.mark.parametrize("user", [None, "admin:wrong", "stranger:a", "admin", ":", "admin:"])
@pytest.mark.parametrize("path", ["/subjects", "/", "/schemas/ids/1", "/config"])
def test_request_without_valid_login_is_refused(cluster: Cluster, user: str | None, path: str) -> None:
    answer = Http(cluster.registry_url, user)("GET", path)
    assert (answer.status, answer.body) == (401, {"error_code": 401, "message": "Unauthorized"})


def test_refusal_has_a_challenge_for_basic_authentication(cluster: Cluster) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(cluster.registry_url + "/subjects", timeout=60)
    assert refused.value.headers["WWW-Authenticate"].startswith("Basic ")


@pytest.mark.parametrize("header", ["Basic", "Basic !!!", "Basic \xff", "Bearer YTph", "Basic YTph YTph"])
def test_malformed_authorization_is_refused(cluster: Cluster, header: str) -> None:
    assert Http(cluster.registry_url)("GET", "/subjects", headers={"Authorization": header}).status == 401


def test_rights_apply_by_subject(http: dict[str, Http]) -> None:
    assert http["orders"].register("orders-value", INT).status == 200
    refused = http["orders"].register("items-value", INT)
    assert (refused.status, refused.body["error_code"]) == (403, 40301)
    assert refused.body["message"] == "User is denied operation Write on Subject: items-value"
    assert http["reader"].register("orders-value", INT).body["error_code"] == 40301
    assert http["reader"]("GET", "/subjects/orders-value/versions/1").status == 200
    for method, path, body in (
        ("DELETE", "/subjects/orders-value", None),
        ("DELETE", "/subjects/orders-value/versions/1", None),
        ("PUT", "/config/orders-value", {"compatibility": "NONE"}),
        ("PUT", "/mode/orders-value", {"mode": "READONLY"}),
        ("PUT", "/config", {"compatibility": "NONE"}),
        ("DELETE", "/mode", None),
        ("DELETE", "/contexts/.x", None),
    ):
        assert http["orders"](method, path, body).body["error_code"] == 40301, path
        assert http["admin"](method, path, body).body != {"error_code": 40301}


def test_lists_and_ids_show_only_readable_subjects(http: dict[str, Http]) -> None:
    http["admin"].register("orders-value", INT)
    http["admin"].register("secret-value", '"string"')
    http["admin"].register(":.hidden:secret-value", '"string"')
    assert http["orders"]("GET", "/subjects").body == ["orders-value"]
    assert http["reader"]("GET", "/subjects").body == [":.hidden:secret-value", "orders-value"]
    assert http["nobody"]("GET", "/subjects").body == []
    assert http["nobody"]("GET", "/contexts").body == ["."]
    assert [row["subject"] for row in http["orders"]("GET", "/schemas").body] == ["orders-value"]
    for path in ("/schemas/ids/2", "/schemas/ids/2/schema", "/schemas/ids/2/subjects", "/schemas/ids/2/versions"):
        assert http["orders"]("GET", path).body["error_code"] == 40403
        assert http["admin"]("GET", path).status == 200
    guid = http["admin"]("GET", "/subjects/secret-value/versions/1").body["guid"]
    assert http["orders"]("GET", f"/schemas/guids/{guid}").body["error_code"] == 40403
    assert http["orders"]("GET", "/subjects/:.:secret-value/versions/1").body["error_code"] == 40301
    assert http["orders"]("GET", "/contexts/.hidden/subjects/secret-value/versions").body["error_code"] == 40301


def test_reference_requires_read_on_its_subject(http: dict[str, Http]) -> None:
    http["admin"].register("secret-value", {"type": "fixed", "name": "S", "size": 1})
    references = [{"name": "S", "subject": "secret-value", "version": 1}]
    schema = {"type": "record", "name": "R", "fields": [{"name": "s", "type": "S"}]}
    assert http["orders"].register("orders-value", schema, references=references).body["error_code"] == 40301
    assert http["admin"].register("orders-value", schema, references=references).status == 200
    assert http["orders"]("GET", "/subjects/orders-value/versions/1").status == 200


def test_alias_does_not_widen_rights(http: dict[str, Http]) -> None:
    http["admin"].register("secret-value", INT)
    http["admin"]("PUT", "/config/orders-alias", {"alias": "secret-value"})
    assert http["admin"]("GET", "/subjects/orders-alias/versions/1").body["subject"] == "secret-value"
    assert http["orders"]("GET", "/subjects/orders-alias/versions/1").body["error_code"] == 40301


def test_users_without_acls_may_do_everything() -> None:
    with Cluster(registry=True, users=[User("SCRAM-SHA-256", "alice", "secret")]) as cluster:
        assert Http(cluster.registry_url)("GET", "/subjects").status == 401
        http = Http(cluster.registry_url, "alice:secret")
        assert http.register("a", INT).status == 200
        assert http("PUT", "/mode", {"mode": "READONLY"}).status == 200


def test_registry_of_a_tls_cluster_serves_https_with_users(tmp_path: Path) -> None:
    with Cluster(registry=True, tls=True, users={"alice": "secret"}, superusers=["alice"]) as cluster:
        assert cluster.registry_url.startswith("https://127.0.0.1:")
        http = Http(cluster.registry_url, "alice:secret", ca_pem=cluster.ca_pem)
        assert http.register("a", INT).status == 200
        with pytest.raises(urllib.error.URLError) as failed:
            urllib.request.urlopen(cluster.registry_url, timeout=60)
        assert isinstance(failed.value.reason, ssl.SSLCertVerificationError)
        ca = tmp_path / "ca.pem"
        ca.write_text(cluster.ca_pem)
        client = SchemaRegistryClient(
            {"url": cluster.registry_url, "basic.auth.user.info": "alice:secret", "ssl.ca.location": str(ca)}
        )
        assert client.register_schema("b", Schema(INT, "AVRO")) == 1


@pytest.mark.parametrize(
    ("right", "acl", "allowed"),
    [
        (Right.READ, subject_acl("a", "admin", "s"), True),
        (Right.ADMIN, subject_acl("a", "write", "s"), False),
        (Right.READ, subject_acl("b", "read", "s"), False),
        (Right.READ, subject_acl("*", "read", "*"), True),
        (Right.READ, subject_acl("a", "read", ":.:s"), True),
        (Right.READ, subject_acl("a", "read", ":.x:s"), False),
    ],
)
def test_acl_decides(right: Right, acl: SubjectAcl, allowed: bool) -> None:
    assert RegistryAccess({"a": "x"}, None, (acl,)).may("a", right, "s") is allowed


def write_users(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    os.chmod(path, mode)
    return str(path)


def test_users_file_is_read(tmp_path: Path) -> None:
    path = write_users(
        tmp_path / "users.toml",
        'superusers = ["admin"]\n[users]\nadmin = "a"\napp = "b"\n'
        '[[acls]]\nuser = "app"\nallow = "write"\nsubject = "orders-"\nprefixed = true\n'
        '[[acls]]\nuser = "*"\ndeny = "read"\nsubject = "x"\n',
    )
    access = read_access(path)
    assert access.may("admin", Right.ADMIN, "")
    assert access.may("app", Right.WRITE, "orders-value")
    assert not access.may("app", Right.ADMIN, "orders-value")
    assert "a" not in repr(access).replace("RegistryAccess", "").split("superusers")[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no users"),
        ("[users]\na = 1", "the password is a text"),
        ('[users]\n"a:b" = "x"', "has no colon"),
        ('superusers = ["b"]\n[users]\na = "x"', "no user b in"),
        ('more = 1\n[users]\na = "x"', "unknown field 'more'"),
        ('[users]\na = "x"\n[[acls]]\nuser = "a"\nsubject = "s"', "write allow = or deny ="),
        ('[users]\na = "x"\n[[acls]]\nuser = "a"\nallow = "fly"\nsubject = "s"', "is not a right"),
        ('[users]\na = "x"\n[[acls]]\nuser = "c"\nallow = "read"\nsubject = "s"', "no user c"),
        ("[users\n", "Expected"),
    ],
)
def test_users_file_with_a_mistake_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = write_users(tmp_path / "users.toml", text)
    with pytest.raises(ValueError, match=message) as refused:
        read_access(path)
    assert str(refused.value).startswith(path)


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_users_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = write_users(tmp_path / "users.toml", '[users]\na = "x"', 0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        read_access(path)
