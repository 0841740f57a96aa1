"""The decisions of the registry: the response of each request, and the records that it writes.

Reads answer from the state. A write returns the records to append; the caller appends them, replays them and then
calls the `result` that the write returned, so that a response shows what is in the topic.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ottla.registry import errors, subjects
from ottla.registry.change import Change
from ottla.registry.metadata import (
    merge_metadata,
    merge_rule_sets,
    stated_version,
    with_version,
    without_version,
)
from ottla.registry.records import (
    Reference,
    SchemaVersion,
    context_key,
    context_record,
    encode_value,
    schema_key,
    subject_key,
)
from ottla.registry.settings import RegistrySettings
from ottla.schemas.schema import InvalidSchemaError
from ottla.schemas.types import SCHEMA_TYPES, Compatibility, incompatibilities, parse_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ottla.registry.state import RegistryState
    from ottla.schemas.schema import Schema

    Readable = Callable[[str], bool]
    """Whether the user may read a subject."""

LATEST: Final = -1
MAX_REFERENCE_DEPTH: Final = 50


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """The body of a request with a schema."""

    type: str
    schema: str
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    version: int = 0
    id: int = -1


def _everything(subject: str) -> bool:
    return True


def parse_version(text: str) -> int:
    """Return a version number, or LATEST."""
    text = text.strip()
    if text.lower() in ("latest", "-1"):
        return LATEST
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) < 2**31:
        raise errors.invalid_version(text)
    return int(text)


class RegistryService:
    """Answers from a state; every method names the subject with its context."""

    def __init__(self, state: RegistryState, default_compatibility: str = "BACKWARD") -> None:
        self.state = state
        self.settings = RegistrySettings(state, default_compatibility)
        self._parse = lru_cache(maxsize=1000)(parse_schema_with)

    # Subjects and versions

    def subjects(self, prefix: str, *, deleted: bool = False, deleted_only: bool = False) -> list[str]:
        """List subjects."""
        selected = []
        for subject, versions in self.state.versions.items():
            if subjects.matches(subject, prefix):
                alive = any(not version.deleted for version in versions.values())
                if (deleted_only and not alive) or (not deleted_only and (alive or deleted)):
                    selected.append(subject)
        return sorted(selected)

    def versions(self, subject: str, *, deleted: bool = False, deleted_only: bool = False) -> list[int]:
        """List a subject's versions."""
        candidates = self.state.active(subject, deleted=deleted or deleted_only)
        if not candidates:
            raise errors.subject_not_found(subject)
        return [version.version for version in candidates if version.deleted or not deleted_only]

    def version(self, subject: str, number: int, *, deleted: bool = False) -> SchemaVersion:
        """Return one version, or the latest."""
        versions = self.state.active(subject, deleted=deleted)
        if number == LATEST:
            active = self.state.active(subject)
            if active:
                return active[-1]
            if versions:
                return versions[-1]
            raise errors.subject_not_found(subject)
        for version in versions:
            if version.version == number:
                return version
        raise errors.version_not_found(number) if versions else errors.subject_not_found(subject)

    def by_id(self, schema_id: int, subject: str = "", readable: Readable = _everything) -> SchemaVersion:
        """Return a version with an id, in the context of a subject, of a subject that may be read."""
        holders = self._readable_holders(schema_id, subject, readable)
        if not holders and subject and subjects.split(subject)[0] == subjects.DEFAULT_CONTEXT:
            for context in self.state.contexts():
                holders = holders or self._readable_holders(schema_id, f":{context}:", readable)
        if not holders:
            raise errors.schema_not_found(schema_id)
        return min(holders, key=lambda version: (version.subject != subject, version.deleted, version.subject))

    def _readable_holders(self, schema_id: int, subject: str, readable: Readable) -> list[SchemaVersion]:
        return [version for version in self.state.holders(subject, schema_id) if readable(version.subject)]

    def versions_of_id(
        self, schema_id: int, subject: str, *, deleted: bool, readable: Readable = _everything
    ) -> list[dict[str, Any]]:
        """List the subjects and versions with an id."""
        holders = self._readable_holders(schema_id, subject, readable)
        if not holders:
            raise errors.schema_not_found(schema_id)
        return [
            {"subject": version.subject, "version": version.version}
            for version in sorted(holders, key=lambda version: (version.subject, version.version))
            if deleted or not version.deleted
        ]

    def by_guid(self, guid: str, readable: Readable = _everything) -> tuple[SchemaVersion, list[dict[str, Any]]]:
        """Return a version with a guid, and the contexts and ids of that guid."""
        import uuid

        try:
            digest = uuid.UUID(guid).bytes
        except ValueError:
            raise errors.schema_not_found(guid) from None
        uses = [
            (context, schema_id)
            for context, schema_id in self.state.with_digest(digest)
            if self._readable_holders(schema_id, f":{context}:", readable)
        ]
        if not uses:
            raise errors.schema_not_found(guid)
        context, schema_id = uses[0]
        ids = [{"context": name, "id": number} for name, number in uses]
        return self.by_id(schema_id, "" if context == subjects.DEFAULT_CONTEXT else f":{context}:", readable), ids

    def resolve_alias(self, subject: str) -> str:
        """Return the subject that the config `alias` of a subject names, else the subject itself."""
        alias = self.state.configs.get(subject, {}).get("alias") if subject else None
        return subject if not alias else subjects.in_context(subjects.split(subject)[0], str(alias))

    def referenced_by(
        self, subject: str, number: int, *, deleted: bool = False, readable: Readable = _everything
    ) -> list[int]:
        """List the ids of schemas that refer to a version."""
        version = self.version(subject, number, deleted=deleted)
        referrers = self.state.referrers(subject, version.version, deleted=deleted)
        return sorted({referrer.id for referrer in referrers if readable(referrer.subject)})

    def formatted(self, version: SchemaVersion, format_: str) -> str:
        """Return a version's text in a format: empty, or one that its type has; 422 for others."""
        if not format_:
            return version.schema
        try:
            return self._parsed(version).formatted(format_)
        except ValueError as error:
            raise errors.invalid_schema(str(error)) from None

    # Lookup, registration, compatibility

    def lookup(self, subject: str, request: SchemaRequest, *, normalize: bool, deleted: bool) -> SchemaVersion:
        """Return the version of a subject that has a schema."""
        versions = self.state.active(subject, deleted=deleted)
        if not versions:
            raise errors.subject_not_found(subject)
        canonical = self._canonical(subject, request, normalize=normalize)
        populated = self._populated(subject, request, self.state.active(subject)[-1:], None)
        match = self._same(canonical, versions)
        if match is None and populated != request:
            match = self._same(self._canonical(subject, populated, normalize=normalize), versions)
        if match is None:
            raise errors.schema_not_found()
        return match

    def _same(self, version: SchemaVersion, versions: list[SchemaVersion]) -> SchemaVersion | None:
        """Return the newest version with the same schema, written with or without its references resolved."""
        candidates = [candidate for candidate in reversed(versions) if candidate.type == version.type]
        for candidate in candidates:
            if candidate.digest == version.digest:
                return candidate
        schema = self._parsed(version)
        for candidate in candidates:
            if not _may_look_up(version, candidate):
                continue
            if candidate.schema == version.schema or self._parsed(candidate).resolved() == schema.resolved():
                return candidate
        return None

    def _populated(
        self, subject: str, request: SchemaRequest, previous: list[SchemaVersion], version: int | None
    ) -> SchemaRequest:
        """Return a request with the metadata and rules that configs and the previous version add.

        A request without schema takes the previous one. `version` is the number that the schema will get.
        """
        config = self.settings.config_in_scope(subject)
        metadata, rule_set = request.metadata, request.rule_set
        if previous:
            last = previous[-1]
            if not request.schema.strip():
                request = replace(request, schema=last.schema, type=last.type, references=last.references)
            metadata = last.metadata if metadata is None else metadata
            rule_set = last.rule_set if rule_set is None else rule_set
        metadata = merge_metadata(config.get("defaultMetadata"), metadata)
        metadata = merge_metadata(metadata, config.get("overrideMetadata"))
        rule_set = merge_rule_sets(config.get("defaultRuleSet"), rule_set)
        rule_set = merge_rule_sets(rule_set, config.get("overrideRuleSet"))
        if version is not None and (request.version != 0 or stated_version(metadata) is not None):
            metadata = with_version(metadata, version)
        return replace(request, metadata=metadata, rule_set=rule_set)

    def register(self, subject: str, request: SchemaRequest, *, normalize: bool) -> Change:
        """Register a schema under a subject; a schema that is there already keeps its id and version."""
        if not subjects.is_valid(subject):
            raise errors.invalid_subject(subject)
        mode = self.settings.mode_in_scope(subject)
        self._check_register_mode(subject, request, mode)
        importing = mode in ("IMPORT", "FORWARD")
        active = self.state.active(subject)
        every = self.state.active(subject, deleted=True)
        following = every[-1].version + 1 if every else 1
        if not importing:
            request = self._populated(subject, request, active, following)
        version = self._canonical(subject, request, normalize=normalize)
        known = self.state.id_of(subject, version.digest)
        if request.version <= 0:
            candidates = active if request.version == 0 else active[-1:]
            existing = self._same(version, [entry for entry in candidates if request.id in (-1, entry.id)])
            if existing is not None:
                return _unchanged(existing)
        if not importing:
            problems = self._incompatibilities(subject, version, active)
            if problems:
                raise errors.incompatible(
                    f'Schema being registered is incompatible with an earlier schema for subject "{subject}", '
                    f"details: [{', '.join(problems)}]"
                )
        if request.version > 0 and request.version != following and not importing:
            raise errors.invalid_schema("Version is not one more than previous version")
        version.version = request.version if request.version > 0 else following
        version.id = self._choose_id(subject, request, version, known)
        records: list[tuple[bytes, bytes | None]] = []
        context = subjects.split(subject)[0]
        if context not in self.state.contexts():
            records.append(context_record(context))
        for old in every:
            replaced = old.deleted and old.id == version.id and old.version < version.version
            if replaced and not self.state.referrers(subject, old.version, deleted=True):
                records.append((old.key(), None))
        records.append((version.key(), version.value()))
        return Change(records, lambda: self.version(subject, version.version))

    def _choose_id(self, subject: str, request: SchemaRequest, version: SchemaVersion, known: int | None) -> int:
        if request.id < 0:
            return self.state.next_id(subject) if known is None else known
        for holder in self.state.holders(subject, request.id):
            if holder.digest != version.digest:
                raise errors.not_permitted(f"Overwrite new schema with id {request.id} is not permitted.")
        if known is not None and known != request.id:
            raise errors.id_does_not_match(known)
        return request.id

    def _check_register_mode(self, subject: str, request: SchemaRequest, mode: str) -> None:
        name = f"Subject {subject} in context {subjects.split(subject)[0]}"
        if mode.startswith("READONLY"):
            raise errors.not_permitted(f"{name} is in read-only mode")
        if request.id >= 0 and mode not in ("IMPORT", "FORWARD"):
            raise errors.not_permitted(f"{name} is not in import mode")
        if request.id < 0 and mode != "READWRITE":
            raise errors.not_permitted(f"{name} is not in read-write mode")

    def check(self, subject: str, request: SchemaRequest, number: int | None, *, normalize: bool) -> list[str]:
        """Return why a schema is not compatible with a version, or at the compatibility level of the subject."""
        if number is None:
            versions = self.state.active(subject)
        elif number == LATEST:
            versions = self.state.active(subject)[-1:]
        else:
            versions = [version for version in self.state.active(subject) if version.version == number]
            if not versions:
                raise errors.version_not_found(number)
        return self._incompatibilities(subject, self._canonical(subject, request, normalize=normalize), versions)

    def _incompatibilities(self, subject: str, version: SchemaVersion, existing: list[SchemaVersion]) -> list[str]:
        config = self.settings.config_in_scope(subject)
        level = Compatibility(config["compatibilityLevel"])
        if level is Compatibility.NONE:
            return []
        group = config.get("compatibilityGroup")
        if group is not None:
            value = _property(version, group)
            existing = [candidate for candidate in existing if _property(candidate, group) == value]
        earlier = ((candidate.version, self._parsed(candidate)) for candidate in reversed(existing))
        lenient = config.get("compatibilityPolicy") == "LENIENT"
        try:
            problems = incompatibilities(self._parsed(version), earlier, level, lenient=lenient)
        except RecursionError:
            raise errors.invalid_schema("the schemas are too deeply recursive to be compared") from None
        except InvalidSchemaError as error:
            raise errors.invalid_schema(f"Invalid schema, details: {error}") from None
        if problems:
            validate = "true" if config.get("validateFields") else "false"
            problems.append(f"{{validateFields: '{validate}', compatibility: '{level.value}'}}")
        return problems

    def _canonical(self, subject: str, request: SchemaRequest, *, normalize: bool) -> SchemaVersion:
        if request.type not in SCHEMA_TYPES:
            raise errors.invalid_schema(f"Invalid schema type {request.type}")
        if not request.schema.strip():
            raise errors.invalid_schema("Empty schema")
        draft = SchemaVersion(
            subject, 0, -1, request.type, request.schema, request.references, request.metadata, request.rule_set
        )
        try:
            schema = self._parsed(draft)
            if normalize or self.settings.config_in_scope(subject).get("normalize"):
                schema = schema.normalized()
                draft = replace(draft, references=tuple(sorted(set(draft.references), key=lambda entry: entry.name)))
            return replace(draft, schema=schema.canonical())
        except InvalidSchemaError as error:
            raise errors.invalid_schema(f"Invalid schema {_shown(draft)}, details: {error}") from None

    def _parsed(self, version: SchemaVersion) -> Schema:
        texts = self._resolve(version.subject, version.references)
        return self._parse(version.type, version.schema, tuple(texts.items()))

    def _resolve(self, parent: str, references: Iterable[Reference], depth: int = 0) -> dict[str, str]:
        """Return the texts of references, those that they need themselves first."""
        if depth > MAX_REFERENCE_DEPTH:
            raise InvalidSchemaError(f"references nest deeper than {MAX_REFERENCE_DEPTH} levels")
        texts: dict[str, str] = {}
        for reference in references:
            subject = subjects.in_context(subjects.split(parent)[0], reference.subject)
            versions = self.state.active(subject, deleted=True)
            version = next((entry for entry in versions if entry.version == reference.version), None)
            if reference.version == LATEST and versions:
                version = versions[-1]
            if version is None:
                raise InvalidSchemaError(
                    f'No schema reference found for subject "{reference.subject}" and version {reference.version}'
                )
            for name, text in self._resolve(subject, version.references, depth + 1).items():
                texts.setdefault(name, text)
            texts[reference.name] = version.schema
        return texts

    # Deletion

    def delete_version(self, subject: str, number: int, *, permanent: bool) -> Change:
        """Soft-delete a version, or delete a soft-deleted version permanently."""
        version = self.version(subject, number, deleted=True)
        if version.deleted and not permanent:
            raise errors.version_soft_deleted(subject, version.version)
        self.settings.check_writable(subject)
        if self.state.referrers(subject, version.version, deleted=permanent):
            raise errors.reference_exists(subject, version.version)
        if permanent and not version.deleted:
            raise errors.version_not_soft_deleted(subject, version.version)
        value = None if permanent else replace(version, deleted=True).value()
        records: list[tuple[bytes, bytes | None]] = [(version.key(), value)]
        if permanent and len(self.state.active(subject, deleted=True)) == 1:
            records += self._forget_settings(subject)
        return Change(records, lambda: version.version)

    def delete_subject(self, subject: str, *, permanent: bool) -> Change:
        """Delete all versions of a subject."""
        self.settings.check_writable(subject)
        every = self.state.active(subject, deleted=True)
        if not every:
            raise errors.subject_not_found(subject)
        active = self.state.active(subject)
        if not active and not permanent:
            raise errors.subject_soft_deleted(subject)
        if active and permanent:
            raise errors.subject_not_soft_deleted(subject)
        doomed = every if permanent else active
        for version in doomed:
            referrers = self.state.referrers(subject, version.version, deleted=permanent)
            if any(referrer.subject != subject for referrer in referrers):
                raise errors.reference_exists(subject, version.version)
        numbers = [version.version for version in doomed]
        if permanent:
            records = [(schema_key(subject, number), None) for number in reversed(numbers)]
            return Change([*records, *self._forget_settings(subject)], lambda: numbers)
        value = encode_value({"subject": subject, "version": numbers[-1]})
        return Change([(subject_key("DELETE_SUBJECT", subject), value)], lambda: numbers)

    def _forget_settings(self, subject: str) -> list[tuple[bytes, bytes | None]]:
        records: list[tuple[bytes, bytes | None]] = []
        if subject in self.state.modes:
            records.append((subject_key("MODE", subject), None))
        if subject in self.state.configs:
            records.append((subject_key("CONFIG", subject), None))
        return records

    # Contexts

    def delete_context(self, context: str) -> Change:
        """Delete a context without subjects."""
        name = subjects.split(subjects.in_context(context, ""))[0]
        if name not in self.state.contexts():
            raise errors.subject_not_found(f":{name}:")
        if name == subjects.DEFAULT_CONTEXT or any(subjects.split(entry)[0] == name for entry in self.state.versions):
            raise errors.context_not_empty(f":{name}:")
        return Change([(context_key(name), None)], lambda: None)


def _may_look_up(version: SchemaVersion, existing: SchemaVersion) -> bool:
    """Return whether references, metadata and rules of a request allow it to name an existing version.

    A request may omit the references (with the schema resolved) and the property `confluent:version`.
    """
    if version.references and version.references != existing.references:
        return False
    if version.rule_set != existing.rule_set:
        return False
    stated, existing_stated = stated_version(version.metadata), stated_version(existing.metadata)
    if stated is not None and existing_stated is None and stated != str(existing.version):
        return False
    if (stated is None) == (existing_stated is None):
        return version.metadata == existing.metadata
    return without_version(version.metadata) == without_version(existing.metadata)


def _unchanged(version: SchemaVersion) -> Change:
    return Change([], lambda: version)


def parse_schema_with(type_: str, text: str, references: tuple[tuple[str, str], ...]) -> Schema:
    """Parse a schema; hashable arguments, so that results are cached."""
    return parse_schema(type_, text, dict(references))


def _property(version: SchemaVersion, name: str) -> Any:
    return ((version.metadata or {}).get("properties") or {}).get(name)


def _shown(version: SchemaVersion) -> str:
    references = json.dumps([reference.as_json() for reference in version.references])
    return (
        f"{{subject={version.subject},version=0,id=-1,schemaType={version.type},references={references},"
        f"metadata={version.metadata},ruleSet={version.rule_set},schema={version.schema[:1000]}}}"
    )
