"""Users, ACLs and TLS of a test cluster; kfake's User, Superuser and EnableACLs.

    with Cluster(users={"alice": "secret"}, superusers={"admin": "x"}, acls=[allow("alice", "read", topic="orders")]):
    with Cluster(users=[User("SCRAM-SHA-256", "alice", "secret", [allow("alice", "read", topic="orders")])]):

A user without a mechanism can authenticate with PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, overload

from ottla.cluster.security.acls import (
    CLUSTER_RESOURCE_NAME,
    Acl,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
    validate_new_acl,
)
from ottla.cluster.security.scram import MIN_ITERATIONS, SCRAM_SHA_256, SCRAM_SHA_512, credential_from_password
from ottla.protocol.schema import Uuid
from ottla.registry.access import RegistryAccess, SubjectAcl, check_user, subject_acl

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.broker.runtime import BrokerRuntime
    from ottla.protocol.schema import Message
    from ottla.security.dev_tls import Authority

    AnyUser: TypeAlias = "User | tuple[str | None, str, str] | tuple[str | None, str, str, Sequence[Acl | SubjectAcl]]"
    Users: TypeAlias = Mapping[str, str] | Iterable[AnyUser]

SCRAM = {"SCRAM-SHA-256": SCRAM_SHA_256, "SCRAM-SHA-512": SCRAM_SHA_512}
MECHANISMS = ("PLAIN", *SCRAM)
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@overload
def allow(principal: str, operation: str, *, subject: str, prefixed: bool = False) -> SubjectAcl: ...


@overload
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
) -> Acl: ...


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
    subject: str | None = None,
    prefixed: bool = False,
    host: str = "*",
) -> Acl | SubjectAcl:
    """Return an ACL that allows a principal (`alice` or `User:alice`) an operation on one resource.

    Operations on a `subject` of the schema registry are read, write and admin.
    """
    if subject is not None:
        _refuse_resources(topic, group, transactional_id, user, token, cluster)
        return subject_acl(principal, operation, subject, prefixed=prefixed)
    return _entry(
        AclPermission.ALLOW, principal, operation, topic, group, transactional_id, user, token, cluster, prefixed, host
    )


@overload
def deny(principal: str, operation: str, *, subject: str, prefixed: bool = False) -> SubjectAcl: ...


@overload
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
) -> Acl: ...


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
    subject: str | None = None,
    prefixed: bool = False,
    host: str = "*",
) -> Acl | SubjectAcl:
    """Return an ACL that denies an operation; it takes precedence over ACLs that allow it."""
    if subject is not None:
        _refuse_resources(topic, group, transactional_id, user, token, cluster)
        return subject_acl(principal, operation, subject, prefixed=prefixed, denied=True)
    return _entry(
        AclPermission.DENY, principal, operation, topic, group, transactional_id, user, token, cluster, prefixed, host
    )


def _refuse_resources(*resources: str | bool | None) -> None:
    if any(resources):
        raise ValueError("subject= cannot be combined with another resource")


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
    resources = [
        (ResourceType.TOPIC, topic),
        (ResourceType.GROUP, group),
        (ResourceType.TRANSACTIONAL_ID, transactional_id),
        (ResourceType.USER, user),
        (ResourceType.DELEGATION_TOKEN, token),
        (ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME if cluster else None),
    ]
    named = [(kind, name) for kind, name in resources if name is not None]
    if len(named) != 1:
        raise ValueError("name one resource: topic=, group=, transactional_id=, user=, token=, subject=, cluster=")
    try:
        acl_operation = AclOperation[operation.upper().replace("-", "_")]
    except KeyError:
        raise ValueError(
            f"{operation!r} is not an operation; use read, write, describe, alter_configs, all, ..."
        ) from None
    kind, name = named[0]
    entry = Acl(
        kind,
        name,
        PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        principal if ":" in principal else f"User:{principal}",
        host,
        acl_operation,
        permission,
    )
    validate_new_acl(entry)
    return entry


class User(NamedTuple):
    """A SASL user: its mechanism (None: any), name, password and ACLs."""

    mechanism: str | None
    name: str
    password: str
    acls: Sequence[Acl | SubjectAcl] = ()

    def __repr__(self) -> str:
        return f"User({self.mechanism}, {self.name})"

    def authenticates_with(self, mechanism: str) -> bool:
        """Return whether the user can authenticate with this mechanism."""
        return self.mechanism in (None, mechanism)


class ClusterSecurity:
    """The users, super users and ACLs of a test cluster, and the broker configs for them."""

    def __init__(self, users: object, superusers: object, acls: Iterable[Acl | SubjectAcl] | None) -> None:
        names, more_users = _split_superusers(superusers)
        self.users = [*_read_users(users), *more_users]
        counts = Counter(user.name for user in self.users)
        duplicates = sorted(name for name, count in counts.items() if count > 1)
        if duplicates:
            raise ValueError(f"users: {', '.join(duplicates)} occurs twice")
        self._superusers = [*names, *(user.name for user in more_users)]
        user_acls = [acl for user in self.users for acl in user.acls]
        self._authorizes = superusers is not None or acls is not None or bool(user_acls)
        entries = [*(acls or ()), *user_acls]
        self.acls = [acl for acl in entries if isinstance(acl, Acl)]
        self.subject_acls = [acl for acl in entries if isinstance(acl, SubjectAcl)]

    def listener(self, authority: Authority | None) -> str:
        """Return the security protocol for users and TLS, which is also the listener's name."""
        if self.users:
            return "SASL_PLAINTEXT" if authority is None else "SASL_SSL"
        return "PLAINTEXT" if authority is None else "SSL"

    def configs(self, authority: Authority | None) -> dict[str, str]:
        """Return the broker configs for users, ACLs and TLS; empty if there are none."""
        configs: dict[str, str] = {}
        if authority is not None:
            server = authority.server()
            configs["ssl.keystore.type"] = configs["ssl.truststore.type"] = "PEM"
            configs["ssl.keystore.key"] = server.key_pem.decode()
            configs["ssl.keystore.certificate.chain"] = server.certificate_pem.decode()
            configs["ssl.truststore.certificates"] = authority.certificate_pem.decode()
        if self.users:
            plain = [user for user in self.users if user.authenticates_with("PLAIN")]
            options = "".join(f' user_{user.name}="{_escape(user.password)}"' for user in plain)
            configs["sasl.enabled.mechanisms"] = ",".join(MECHANISMS)
            listener = self.listener(authority).lower()
            configs[f"listener.name.{listener}.plain.sasl.jaas.config"] = f"PlainLoginModule required{options};"
        if self._authorizes:
            configs["authorizer.class.name"] = AUTHORIZER
            configs["super.users"] = ";".join(name if ":" in name else f"User:{name}" for name in self._superusers)
        return configs

    def console_login(self) -> User | None:
        """Return the user that the console acts as: a super user if one has a password, else the first user."""
        names = {name.removeprefix("User:") for name in self._superusers}
        return next((user for user in self.users if user.name in names), self.users[0] if self.users else None)

    def client_properties(self, authority: Authority | None, user: User | None) -> dict[str, str]:
        """Return the properties of a client that connects as a user, and trusts the cluster's certificate."""
        properties = {"security.protocol": self.listener(authority)}
        if authority is not None:
            properties["ssl.truststore.type"] = "PEM"
            properties["ssl.truststore.certificates"] = authority.certificate_pem.decode()
        if user is not None:
            properties["sasl.mechanism"] = user.mechanism or "PLAIN"
            properties["sasl.username"] = user.name
            properties["sasl.password"] = user.password
        return properties

    def registry_access(self) -> RegistryAccess | None:
        """Return the users of the schema registry, by basic authentication; None without users."""
        if not self.users:
            return None
        for user in self.users:
            check_user(user.name, user.password)
        passwords = {user.name: user.password for user in self.users}
        if not self._authorizes:
            return RegistryAccess(passwords)
        superusers = frozenset(name.removeprefix("User:") for name in self._superusers)
        return RegistryAccess(passwords, superusers, tuple(self.subject_acls))

    def write(self, runtime: BrokerRuntime) -> None:
        """Write the SCRAM credentials and ACLs to the metadata log, as an administrator's requests would."""
        random = runtime.world.random.fork("users of a test")
        records: list[Message] = []
        for user in self.users:
            for name, mechanism in SCRAM.items():
                if user.authenticates_with(name) and user.name not in runtime.image.scram.get(mechanism, {}):
                    credential = credential_from_password(
                        mechanism, user.password.encode(), random.bytes(20), MIN_ITERATIONS
                    )
                    records.append(credential.to_record(user.name, mechanism))
        existing = set(runtime.image.acls.values())
        records += [acl.to_record(Uuid(random.uuid())) for acl in self.acls if acl not in existing]
        runtime.change(records)


def _split_superusers(superusers: object) -> tuple[list[str], list[User]]:
    """Return the names of other users, and the users of their own, in `superusers`."""
    if superusers is None or isinstance(superusers, Mapping):
        return [], _read_users(superusers)
    if isinstance(superusers, str):
        raise ValueError('superusers: write a list of names, such as ["admin"]')
    principals = list(superusers)  # type: ignore[call-overload]
    names = [item for item in principals if isinstance(item, str)]
    return names, _read_users([item for item in principals if not isinstance(item, str)])


def _read_users(declared: object) -> list[User]:
    if declared is None:
        return []
    if isinstance(declared, Mapping):
        return [_check_user(User(None, name, password)) for name, password in declared.items()]
    users = []
    for item in declared:  # type: ignore[attr-defined]
        if isinstance(item, str) or len(item) not in (3, 4):
            raise ValueError(
                'users: write {"alice": "secret"}, or [User("SCRAM-SHA-256", "alice", "secret", [allow(...)])]'
            )
        users.append(_check_user(User(*item)))
    return users


def _check_user(user: User) -> User:
    if user.mechanism is not None and user.mechanism not in MECHANISMS:
        raise ValueError(f"users: {user.mechanism!r} is not one of {', '.join(MECHANISMS)}")
    if not isinstance(user.name, str) or not user.name or not isinstance(user.password, str):
        raise ValueError("users: name and password must be strings, and the name not empty")
    principals = {acl.principal if isinstance(acl, Acl) else f"User:{acl.user}" for acl in user.acls}
    others = principals - {f"User:{user.name}"}
    if others:
        raise ValueError(f"users: {user.name} has ACLs of {', '.join(sorted(others))}; pass those as acls=")
    return user


def _escape(password: str) -> str:
    return password.replace("\\", "\\\\").replace('"', '\\"')


def throw_away_authority(tls: bool | Authority) -> Authority | None:
    """Return the certificate authority for a listener: none, the given one, or with True a new one."""
    if tls is False:
        return None
    if tls is not True:
        return tls
    try:
        from ottla.security.dev_tls import Authority as ThrowAway
    except ImportError:
        raise ValueError("tls=True requires the package cryptography: pip install 'ottla[security]'") from None
    return ThrowAway()
