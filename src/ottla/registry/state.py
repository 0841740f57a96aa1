"""The state that the records of `_schemas` describe. Only `replay` changes it, live and at start."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ottla.printable import printable
from ottla.registry import subjects
from ottla.registry.records import decode_json, decode_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.registry.records import SchemaVersion

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Context:
    """The ids of one context."""

    by_id: dict[int, dict[tuple[str, int], SchemaVersion]] = field(default_factory=dict)
    id_by_digest: dict[bytes, int] = field(default_factory=dict)
    largest_id: int = 0
    listed: bool = True
    """Cleared when the context is deleted; its ids stay taken."""


class RegistryState:
    """Subjects, versions, ids, configs and modes."""

    def __init__(self) -> None:
        self.versions: dict[str, dict[int, SchemaVersion]] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        """By subject; the empty one is global."""
        self.modes: dict[str, str] = {}
        self._contexts: dict[str, _Context] = {subjects.DEFAULT_CONTEXT: _Context()}
        self.unreadable = 0

    def replay(self, key: bytes | None, value: bytes | None, offset: int, timestamp: int) -> None:
        """Apply a record; one that cannot be read is logged with its offset and skipped, as Confluent's does."""
        try:
            self._apply(decode_json(key or b"{}"), value, timestamp)
        except (ValueError, KeyError, TypeError) as error:
            self.unreadable += 1
            log.error("_schemas-0: cannot read the record at offset %d: %s", offset, printable(str(error)))

    def _apply(self, key: dict[str, Any], value: bytes | None, timestamp: int) -> None:
        kind = key.get("keytype")
        subject = subjects.normalize(str(key.get("subject") or ""))
        tree = None if value is None else decode_json(value)
        if kind == "SCHEMA":
            number = int(key["version"])
            version = None if tree is None else decode_version(tree, timestamp)
            if version is not None:
                version.subject, version.version = subject, number
                for holder in self.holders(subject, version.id):
                    if holder.schema != version.schema and (holder.subject, holder.version) != (subject, number):
                        raise ValueError(f"{holder.subject} version {holder.version} has the same id {version.id}")
            self._forget(subject, number)
            if version is not None:
                self._remember(version)
        elif kind == "CONFIG":
            self._set(self.configs, subject, tree)
        elif kind == "MODE":
            self._set(self.modes, subject, None if tree is None else str(tree["mode"]))
        elif kind == "DELETE_SUBJECT" and tree is not None:
            for number, version in self.versions.get(subject, {}).items():
                if number <= int(tree["version"]):
                    version.deleted = True
        elif kind == "CLEAR_SUBJECT":
            for name in [name for name in self.versions if subjects.covers(subject, name)]:
                for number, version in list(self.versions[name].items()):
                    if version.deleted:
                        self._forget(name, number)
        elif kind == "CONTEXT" and tree is not None:
            self._contexts.setdefault(str(tree["context"]), _Context()).listed = True
        elif kind == "CONTEXT":
            context = self._contexts.get(str(key.get("context")))
            if context is not None:
                context.listed = bool(context.by_id)
        elif kind not in ("NOOP", "ASSOC", "DELETE_SUBJECT"):
            raise ValueError(f"unknown keytype {kind!r}")

    @staticmethod
    def _set(table: dict[str, Any], subject: str, entry: Any) -> None:
        if entry is None:
            table.pop(subject, None)
        else:
            table[subject] = entry

    def _remember(self, version: SchemaVersion) -> None:
        context = self._contexts.setdefault(subjects.split(version.subject)[0], _Context())
        context.listed = True
        self.versions.setdefault(version.subject, {})[version.version] = version
        context.by_id.setdefault(version.id, {})[version.subject, version.version] = version
        context.id_by_digest.setdefault(version.digest, version.id)
        context.largest_id = max(context.largest_id, version.id)

    def _forget(self, subject: str, number: int) -> None:
        version = self.versions.get(subject, {}).pop(number, None)
        if version is None:
            return
        if not self.versions[subject]:
            del self.versions[subject]
        context = self._contexts[subjects.split(subject)[0]]
        holders = context.by_id[version.id]
        holders.pop((subject, number), None)
        if not holders:  # the id stays taken: `largest_id` never goes back
            del context.by_id[version.id]
            if context.id_by_digest.get(version.digest) == version.id:
                del context.id_by_digest[version.digest]

    # Queries

    def contexts(self) -> list[str]:
        """Return all contexts, the default one first."""
        return sorted(name for name, context in self._contexts.items() if context.listed)

    def next_id(self, subject: str) -> int:
        """Return an id that no schema of the subject's context has or had."""
        return self._context(subject).largest_id + 1

    def id_of(self, subject: str, digest: bytes) -> int | None:
        """Return the id of a schema in the context of a subject."""
        return self._context(subject).id_by_digest.get(digest)

    def holders(self, subject: str, schema_id: int) -> list[SchemaVersion]:
        """Return the versions with an id in the context of a subject."""
        return list(self._context(subject).by_id.get(schema_id, {}).values())

    def with_digest(self, digest: bytes) -> Iterator[tuple[str, int]]:
        """Yield the contexts and ids of a schema."""
        for name, context in self._contexts.items():
            if digest in context.id_by_digest:
                yield name, context.id_by_digest[digest]

    def active(self, subject: str, *, deleted: bool = False) -> list[SchemaVersion]:
        """Return a subject's versions in ascending order; with `deleted`, soft-deleted ones too."""
        versions = self.versions.get(subject, {})
        return [versions[number] for number in sorted(versions) if deleted or not versions[number].deleted]

    def referrers(self, subject: str, number: int, *, deleted: bool) -> list[SchemaVersion]:
        """Return the versions that refer to a version."""
        context = subjects.split(subject)[0]
        return [
            version
            for versions in self.versions.values()
            for version in versions.values()
            if (deleted or not version.deleted)
            and any(
                reference.version == number
                and subjects.in_context(subjects.split(version.subject)[0], reference.subject) == subject
                for reference in version.references
            )
            and subjects.split(version.subject)[0] == context
        ]

    def _context(self, subject: str) -> _Context:
        return self._contexts.get(subjects.split(subject)[0]) or _Context()
