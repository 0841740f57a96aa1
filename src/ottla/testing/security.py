"""Users and ACLs of a cluster for tests, as kfake's User, Superuser and EnableACLs give them.

    with Cluster(users={"alice": "secret"}, superusers={"admin": "x"}, acls=[allow("alice", "read", topic="orders")]):
    with Cluster(users=[User("SCRAM-SHA-256", "alice", "secret", [allow("alice", "read", topic="orders")])]):

A user without a mechanism of its own can log in with PLAIN and with both kinds of SCRAM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

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
    from collections.abc import Iterable, Sequence

    from ottla.broker.runtime import BrokerRuntime
    from ottla.protocol.schema import Message
    from ottla.security.dev_tls import Authority

    AnyUser: TypeAlias = "User | tuple[str | None, str, str] | tuple[str | None, str, str, Sequence[Acl]]"
    Users: TypeAlias = Mapping[str, str] | Iterable[AnyUser]

SCRAM = {"SCRAM-SHA-256": SCRAM_SHA_256, "SCRAM-SHA-512": SCRAM_SHA_512}
MECHANISMS = ("PLAIN", *SCRAM)
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


class User(NamedTuple):
    """Somebody who can log in: with one mechanism, or (None) with any; and the entries that are about them."""

    mechanism: str | None
    name: str
    password: str
    acls: Sequence[Acl] = ()

    def __repr__(self) -> str:
        return f"User({self.mechanism}, {self.name})"

    def logs_in_with(self, mechanism: str) -> bool:
        """Whether this mechanism is one of theirs."""
        return self.mechanism in (None, mechanism)


class Logins:
    """Who can log in to a cluster, who of them passes every check, and what is allowed."""

    def __init__(self, users: object, superusers: object, acls: Iterable[Acl] | None) -> None:
        named, mighty = _split(superusers)
        self.users = [*_users(users), *mighty]
        twice = {each.name for each in self.users if sum(other.name == each.name for other in self.users) > 1}
        if twice:
            raise ValueError(f"users: {', '.join(sorted(twice))} is there twice")
        self._superusers = [*named, *(each.name for each in mighty)]
        given = [entry for each in self.users for entry in each.acls]
        self._checks = superusers is not None or acls is not None or bool(given)
        self.acls = [*(acls or ()), *given]

    def listener(self, authority: Authority | None) -> str:
        """The security protocol that users and TLS ask for; the listener is called like it."""
        if self.users:
            return "SASL_PLAINTEXT" if authority is None else "SASL_SSL"
        return "PLAINTEXT" if authority is None else "SSL"

    def configs(self, authority: Authority | None) -> dict[str, str]:
        """The broker configs that users, ACLs and TLS ask for; nothing if there are none."""
        found: dict[str, str] = {}
        if authority is not None:
            server = authority.server()
            found["ssl.keystore.type"] = found["ssl.truststore.type"] = "PEM"
            found["ssl.keystore.key"] = server.key_pem.decode()
            found["ssl.keystore.certificate.chain"] = server.certificate_pem.decode()
            found["ssl.truststore.certificates"] = authority.certificate_pem.decode()
        if self.users:
            plain = [each for each in self.users if each.logs_in_with("PLAIN")]
            options = "".join(f' user_{each.name}="{_quoted(each.password)}"' for each in plain)
            found["sasl.enabled.mechanisms"] = ",".join(MECHANISMS)
            listener = self.listener(authority).lower()
            found[f"listener.name.{listener}.plain.sasl.jaas.config"] = f"PlainLoginModule required{options};"
        if self._checks:
            found["authorizer.class.name"] = AUTHORIZER
            found["super.users"] = ";".join(each if ":" in each else f"User:{each}" for each in self._superusers)
        return found

    def write(self, cluster: BrokerRuntime) -> None:
        """Write down the SCRAM credentials and the entries, as clients would have them written."""
        random = cluster.world.random.fork("users of a test")
        records: list[Message] = []
        for user in self.users:
            for name, mechanism in SCRAM.items():
                if user.logs_in_with(name) and user.name not in cluster.image.scram.get(mechanism, {}):
                    credential = credential_from_password(
                        mechanism, user.password.encode(), random.bytes(20), MIN_ITERATIONS
                    )
                    records.append(credential.to_record(user.name, mechanism))
        known = set(cluster.image.acls.values())
        records += [acl.to_record(Uuid(random.uuid())) for acl in self.acls if acl not in known]
        cluster.change(records)


def _split(superusers: object) -> tuple[list[str], list[User]]:
    """Super users are names of users, or users of their own."""
    if superusers is None or isinstance(superusers, Mapping):
        return [], _users(superusers)
    if isinstance(superusers, str):
        raise ValueError('superusers: write a list of names, such as ["admin"]')
    given = list(superusers)  # type: ignore[call-overload]
    return [each for each in given if isinstance(each, str)], _users(
        [each for each in given if not isinstance(each, str)]
    )


def _users(given: object) -> list[User]:
    if given is None:
        return []
    if isinstance(given, Mapping):
        return [_checked(User(None, name, password)) for name, password in given.items()]
    found = []
    for each in given:  # type: ignore[attr-defined]
        if isinstance(each, str) or len(each) not in (3, 4):
            raise ValueError(
                'users: write {"alice": "secret"}, or [User("SCRAM-SHA-256", "alice", "secret", [allow(...)])]'
            )
        found.append(_checked(User(*each)))
    return found


def _checked(user: User) -> User:
    if user.mechanism is not None and user.mechanism not in MECHANISMS:
        raise ValueError(f"users: {user.mechanism!r} is none of {', '.join(MECHANISMS)}")
    if not isinstance(user.name, str) or not user.name or not isinstance(user.password, str):
        raise ValueError("users: a name and a password are texts, and a name is not empty")
    others = {each.principal for each in user.acls} - {f"User:{user.name}"}
    if others:
        raise ValueError(f"users: entries of {user.name} are about {', '.join(sorted(others))}; give those as acls=")
    return user


def _quoted(password: str) -> str:
    return password.replace("\\", "\\\\").replace('"', '\\"')


def throw_away_authority(tls: bool | Authority) -> Authority | None:
    """What signs the certificates of something that listens with TLS: a given authority, or one for this run."""
    if tls is False:
        return None
    if tls is not True:
        return tls
    try:
        from ottla.security.dev_tls import Authority as ThrowAway
    except ImportError:
        raise ValueError("tls=True needs the package cryptography: pip install 'ottla[security]'") from None
    return ThrowAway()
