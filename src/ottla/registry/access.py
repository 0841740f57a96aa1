"""Users of a registry and their rights by subject, in the style of Kafka's ACLs."""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import stat
import tomllib
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from ottla.registry import subjects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ALL_SUBJECTS: Final = "*"
_FIELDS: Final = ("superusers", "users", "acls")
_ACL_FIELDS: Final = ("user", "allow", "deny", "subject", "prefixed")


class Right(IntEnum):
    """What a user may do with a subject; a right includes the lower ones."""

    READ = 1
    """Read, list and look up schemas, check compatibility, read configs and modes."""
    WRITE = 2
    """Register schemas."""
    ADMIN = 3
    """Delete versions and subjects, set configs and modes."""


@dataclass(frozen=True, slots=True)
class SubjectAcl:
    """Allows or denies a user a right on a subject, on subjects with a prefix, or on all (`*`).

    A denied right takes precedence over allowed ones. The user `*` means everyone.
    """

    user: str
    right: Right
    subject: str
    prefixed: bool = False
    denied: bool = False

    def concerns(self, user: str, subject: str) -> bool:
        """Return whether the entry is about this user and subject."""
        if self.user not in (user, ALL_SUBJECTS):
            return False
        pattern = self.subject
        if pattern == ALL_SUBJECTS or (self.prefixed and subject.startswith(pattern)):
            return True
        return subject == pattern


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """The users that a registry admits by basic authentication, and what each may do.

    Without `superusers` and `acls` (both None) every user may do everything.
    """

    passwords: Mapping[str, str] = field(repr=False)
    superusers: frozenset[str] | None = None
    acls: tuple[SubjectAcl, ...] | None = None

    def user_of(self, authorization: str) -> str | None:
        """Return the user of an Authorization header; None if the user or the password is wrong."""
        scheme, _, encoded = authorization.partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            user, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return None
        expected = self.passwords.get(user)
        equal = hmac.compare_digest(password.encode(), (expected or "").encode())
        return user if colon and equal and expected is not None else None

    def may(self, user: str, right: Right, subject: str) -> bool:
        """Return whether a user has a right on a subject; an empty subject means the global config and mode."""
        if self.superusers is None and self.acls is None:
            return True
        if user in (self.superusers or ()):
            return True
        subject = subjects.normalize(subject)
        allowed = False
        for acl in self.acls or ():
            if acl.concerns(user, subject):
                if acl.denied and acl.right == right:
                    return False
                allowed = allowed or (not acl.denied and acl.right >= right)
        return allowed


def subject_acl(user: str, right: str, subject: str, *, prefixed: bool = False, denied: bool = False) -> SubjectAcl:
    """Return an entry; ValueError if the right is unknown or the subject empty."""
    if right.upper() not in Right.__members__:
        raise ValueError(f"{right!r} is not a right on a subject; use read, write or admin")
    if not subject:
        raise ValueError("the subject of an ACL is empty; write * for all subjects")
    return SubjectAcl(user.removeprefix("User:"), Right[right.upper()], subjects.normalize(subject), prefixed, denied)


def read_access(path: str) -> RegistryAccess:
    """Read users and ACLs from a TOML file; ValueError names what is wrong with it.

    The file must not be readable by others, because it has passwords.
    """
    try:
        with open(path, "rb") as file:
            if os.name == "posix" and os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ValueError(f"{path}: other users can read the passwords; run chmod 600 {path}")
            tree = tomllib.load(file)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None
    try:
        return _parse_access(tree)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _parse_access(tree: dict[str, Any]) -> RegistryAccess:
    _refuse_unknown(tree, _FIELDS)
    users = tree.get("users")
    if not isinstance(users, dict) or not users:
        raise ValueError('no users; write a table [users] with lines such as alice = "password"')
    for name, password in users.items():
        check_user(name, password)
    superusers, acls = tree.get("superusers"), tree.get("acls")
    if superusers is not None:
        _check_known("superusers", superusers, users)
    if acls is not None and not (isinstance(acls, list) and all(isinstance(entry, dict) for entry in acls)):
        raise ValueError("acls: write tables [[acls]]")
    return RegistryAccess(
        users,
        None if superusers is None else frozenset(superusers),
        None if acls is None else tuple(_parse_acl(entry, users) for entry in acls),
    )


def check_user(name: str, password: object) -> None:
    """Raise ValueError for a user that basic authentication cannot name."""
    if not name or ":" in name:
        raise ValueError(f"user {name!r}: a name is not empty and has no colon")
    if not isinstance(password, str) or not password:
        raise ValueError(f"user {name}: the password is a text that is not empty")


def _parse_acl(entry: dict[str, Any], users: Mapping[str, str]) -> SubjectAcl:
    _refuse_unknown(entry, _ACL_FIELDS)
    if ("allow" in entry) == ("deny" in entry):
        raise ValueError(f"acls: {entry}: write allow = or deny =, with read, write or admin")
    user, subject, right = entry.get("user"), entry.get("subject"), entry.get("allow", entry.get("deny"))
    if not isinstance(user, str) or not isinstance(subject, str) or not isinstance(right, str):
        raise ValueError(f"acls: {entry}: user, subject and the right are texts")
    if user != ALL_SUBJECTS:
        _check_known("acls", [user], users)
    prefixed = entry.get("prefixed", False)
    if not isinstance(prefixed, bool):
        raise ValueError(f"acls: {entry}: prefixed is true or false")
    return subject_acl(user, right, subject, prefixed=prefixed, denied="deny" in entry)


def _check_known(name: str, listed: object, users: Mapping[str, str]) -> None:
    if not isinstance(listed, list) or not all(isinstance(entry, str) for entry in listed):
        raise ValueError(f"{name}: write a list of users")
    unknown = [entry for entry in listed if entry not in users]
    if unknown:
        raise ValueError(f"{name}: no user {', '.join(unknown)} in [users]")


def _refuse_unknown(tree: Mapping[str, Any], known: Iterable[str]) -> None:
    for name in tree:
        if name not in known:
            raise ValueError(f"unknown field {name!r}; known are {', '.join(known)}")
