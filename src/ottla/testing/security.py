"""Users and ACLs of a cluster for tests, as kfake's User, Superuser and EnableACLs give them.

    with Cluster(users={"alice": "secret"}, super_users=["admin"], acls=[allow("alice", "read", topic="orders")]) as c:

Every user can log in with PLAIN and with both kinds of SCRAM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import (
    CLUSTER_RESOURCE_NAME,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
    validate_new_acl,
)
from ottla.cluster.registrations import Acl
from ottla.cluster.scram import MIN_ITERATIONS, SCRAM_SHA_256, SCRAM_SHA_512, credential_from_password
from ottla.protocol.schema import Uuid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ottla.broker.cluster import Cluster
    from ottla.protocol.schema import Message
    from ottla.security.dev_tls import Authority

MECHANISMS = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def allow(
    principal: str,
    operation: str,
    *,
    topic: str | None = None,
    group: str | None = None,
    transactional_id: str | None = None,
    user: str | None = None,
    token: str | None = None,
    cluster: bool = False,
    prefixed: bool = False,
    host: str = "*",
) -> Acl:
    """An entry that allows a principal (`alice`, or `User:alice`) an operation on one kind of resource."""
    return _entry(
        AclPermission.ALLOW, principal, operation, topic, group, transactional_id, user, token, cluster, prefixed, host
    )


def deny(
    principal: str,
    operation: str,
    *,
    topic: str | None = None,
    group: str | None = None,
    transactional_id: str | None = None,
    user: str | None = None,
    token: str | None = None,
    cluster: bool = False,
    prefixed: bool = False,
    host: str = "*",
) -> Acl:
    """An entry that denies, whatever others allow."""
    return _entry(
        AclPermission.DENY, principal, operation, topic, group, transactional_id, user, token, cluster, prefixed, host
    )


def _entry(
    permission: AclPermission,
    principal: str,
    operation: str,
    topic: str | None,
    group: str | None,
    transactional_id: str | None,
    user: str | None,
    token: str | None,
    cluster: bool,
    prefixed: bool,
    host: str,
) -> Acl:
    named = [
        (ResourceType.TOPIC, topic),
        (ResourceType.GROUP, group),
        (ResourceType.TRANSACTIONAL_ID, transactional_id),
        (ResourceType.USER, user),
        (ResourceType.DELEGATION_TOKEN, token),
        (ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME if cluster else None),
    ]
    given = [(kind, name) for kind, name in named if name is not None]
    if len(given) != 1:
        raise ValueError("name one resource: topic=, group=, transactional_id=, user=, token= or cluster=True")
    try:
        wanted = AclOperation[operation.upper().replace("-", "_")]
    except KeyError:
        raise ValueError(
            f"{operation!r} is no operation; write read, write, describe, alter_configs, all, ..."
        ) from None
    kind, name = given[0]
    entry = Acl(
        kind,
        name,
        PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        principal if ":" in principal else f"User:{principal}",
        host,
        wanted,
        permission,
    )
    validate_new_acl(entry)
    return entry


def listener_name(users: Mapping[str, str], authority: Authority | None) -> str:
    """The security protocol that users and TLS ask for; the listener is called like it."""
    if users:
        return "SASL_PLAINTEXT" if authority is None else "SASL_SSL"
    return "PLAINTEXT" if authority is None else "SSL"


def security_configs(
    users: Mapping[str, str],
    super_users: Iterable[str] | None,
    acls: Iterable[Acl] | None,
    authority: Authority | None = None,
) -> dict[str, str]:
    """The broker configs that users, ACLs and TLS ask for; nothing if there are none."""
    found: dict[str, str] = {}
    if authority is not None:
        server = authority.server()
        found["ssl.keystore.type"] = found["ssl.truststore.type"] = "PEM"
        found["ssl.keystore.key"] = server.key_pem.decode()
        found["ssl.keystore.certificate.chain"] = server.certificate_pem.decode()
        found["ssl.truststore.certificates"] = authority.certificate_pem.decode()
    if users:
        options = " ".join(f'user_{name}="{_quoted(password)}"' for name, password in users.items())
        found["sasl.enabled.mechanisms"] = MECHANISMS
        listener = listener_name(users, authority).lower()
        found[f"listener.name.{listener}.plain.sasl.jaas.config"] = f"PlainLoginModule required {options};"
    if super_users is not None or acls is not None:
        found["authorizer.class.name"] = AUTHORIZER
        found["super.users"] = ";".join(each if ":" in each else f"User:{each}" for each in super_users or ())
    return found


def add_users_and_acls(cluster: Cluster, users: Mapping[str, str], acls: Iterable[Acl] | None) -> None:
    """Write down the SCRAM credentials and the entries, as clients would have them written."""
    random = cluster.world.random.fork("users of a test")
    records: list[Message] = []
    for name, password in users.items():
        for mechanism in (SCRAM_SHA_256, SCRAM_SHA_512):
            if name not in cluster.image.scram.get(mechanism, {}):
                credential = credential_from_password(mechanism, password.encode(), random.bytes(20), MIN_ITERATIONS)
                records.append(credential.to_record(name, mechanism))
    known = set(cluster.image.acls.values())
    records += [acl.to_record(Uuid(random.uuid())) for acl in acls or () if acl not in known]
    cluster.change(records)


def _quoted(password: str) -> str:
    return password.replace("\\", "\\\\").replace('"', '\\"')
