"""Keys and values of the topic `_schemas` in Confluent's format: JSON, one record per change."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.registry.metadata import hash_metadata, hash_rule_set

SCHEMAS_TOPIC: Final = "_schemas"
DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one uses, by the name under which it does."""

    name: str
    subject: str
    version: int

    def as_json(self) -> dict[str, Any]:
        """Return the reference as the API shows it."""
        return {"name": self.name, "subject": self.subject, "version": self.version}


@dataclass(slots=True)
class SchemaVersion:
    """One version of a subject: Confluent's SchemaValue."""

    subject: str
    version: int
    id: int
    type: str
    schema: str
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    deleted: bool = False
    timestamp: int = field(default=0, compare=False)
    _digest: bytes | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def digest(self) -> bytes:
        """Return the MD5 that identifies the schema with its references, metadata and rules."""
        if self._digest is None:
            self._digest = schema_digest(self.schema, self.references, self.metadata, self.rule_set)
        return self._digest

    def set_digest(self, digest: bytes) -> None:
        """Use the MD5 that a record states, which identifies the schema for every registry on the topic."""
        self._digest = digest

    @property
    def guid(self) -> str:
        """Return the digest as a UUID."""
        return str(uuid.UUID(bytes=self.digest))

    def key(self) -> bytes:
        """Return the record's key."""
        return schema_key(self.subject, self.version)

    def value(self) -> bytes:
        """Return the record's value."""
        tree: dict[str, Any] = {"subject": self.subject, "version": self.version, "id": self.id}
        tree["md5"] = base64.b64encode(self.digest).decode()
        if self.type != "AVRO":
            tree["schemaType"] = self.type
        if self.references:
            tree["references"] = [reference.as_json() for reference in self.references]
        if self.metadata is not None:
            tree["metadata"] = self.metadata
        if self.rule_set is not None:
            tree["ruleSet"] = self.rule_set
        return _dump({**tree, "schema": self.schema, "deleted": self.deleted})


def schema_digest(
    schema: str, references: tuple[Reference, ...], metadata: dict[str, Any] | None, rule_set: dict[str, Any] | None
) -> bytes:
    """Return the MD5 of a schema as Confluent computes it."""
    digest = hashlib.md5(schema.encode(), usedforsecurity=False)
    for reference in references:
        digest.update(reference.name.encode() + reference.subject.encode() + reference.version.to_bytes(4, "big"))
    if metadata is not None:
        digest.update(b"\1")
        hash_metadata(metadata, digest.update)
    if rule_set is not None:
        digest.update(b"\1")
        hash_rule_set(rule_set, digest.update)
    return digest.digest()


def schema_key(subject: str, version: int) -> bytes:
    """Return the key of a version's record."""
    return _dump({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})


def subject_key(keytype: str, subject: str | None) -> bytes:
    """Return the key of a CONFIG, MODE, DELETE_SUBJECT or CLEAR_SUBJECT record; no subject means the global one."""
    tree: dict[str, Any] = {"keytype": keytype}
    if subject:
        tree["subject"] = subject
    return _dump({**tree, "magic": 0})


def context_key(context: str) -> bytes:
    """Return the key of a CONTEXT record."""
    return _dump({"keytype": "CONTEXT", "tenant": "default", "context": context, "magic": 0})


def context_record(context: str) -> tuple[bytes, bytes]:
    """Return the record that makes a context known."""
    return context_key(context), _dump({"tenant": "default", "context": context})


def noop_key() -> bytes:
    """Return the key of a NOOP record."""
    return _dump({"keytype": "NOOP", "magic": 0})


def encode_value(tree: dict[str, Any]) -> bytes:
    """Return the value of a CONFIG, MODE, DELETE_SUBJECT or CLEAR_SUBJECT record."""
    return _dump(tree)


def decode_json(data: bytes) -> dict[str, Any]:
    """Return a key or value; ValueError if it is not a JSON object."""
    tree = json.loads(data)
    if not isinstance(tree, dict):
        raise ValueError("not a JSON object")
    return tree


def decode_version(tree: dict[str, Any], timestamp: int) -> SchemaVersion:
    """Return a version from the value of its record; ValueError or KeyError if it is malformed."""
    references = tuple(
        Reference(str(entry["name"]), str(entry["subject"]), int(entry["version"]))
        for entry in tree.get("references") or ()
    )
    version = SchemaVersion(
        str(tree["subject"]),
        int(tree["version"]),
        int(tree["id"]),
        str(tree.get("schemaType") or "AVRO"),
        str(tree["schema"]),
        references,
        tree.get("metadata"),
        tree.get("ruleSet"),
        bool(tree.get("deleted", False)),
        timestamp,
    )
    if isinstance(tree.get("md5"), str):
        digest = base64.b64decode(tree["md5"], validate=True)
        if len(digest) != DIGEST_BYTES:
            raise ValueError(f"an MD5 of {len(digest)} bytes")
        version.set_digest(digest)
    return version


def _dump(tree: Any) -> bytes:
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode()
