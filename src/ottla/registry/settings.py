"""Configs and modes of the registry: global, by context and by subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.registry import errors, subjects
from ottla.registry.change import Change
from ottla.registry.metadata import check_metadata, check_rule_set
from ottla.registry.records import encode_value, subject_key
from ottla.schemas.types import Compatibility

if TYPE_CHECKING:
    from ottla.registry.state import RegistryState

MODES: Final = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD")
POLICIES: Final = ("STRICT", "LENIENT")
_FLAGS: Final = ("normalize", "validateFields", "validateNewSchemas", "validateRules")
_INHERITED: Final = frozenset({*_FLAGS, "compatibilityPolicy", "compatibilityGroup"})
_CONFIG_FIELDS: Final = (
    "alias", *_FLAGS, "compatibilityLevel", "compatibilityPolicy",
    "compatibilityGroup", "defaultMetadata", "overrideMetadata", "defaultRuleSet", "overrideRuleSet",
)  # fmt: skip


class RegistrySettings:
    """Reads and changes configs and modes; an empty subject means the global ones."""

    def __init__(self, state: RegistryState, default_compatibility: str) -> None:
        self.state = state
        self._default = {"compatibilityLevel": default_compatibility}

    def check_writable(self, subject: str) -> None:
        """Raise 42205 if the subject is in read-only mode."""
        if self.mode_in_scope(subject).startswith("READONLY"):
            context = subjects.split(subject)[0]
            raise errors.not_permitted(f"Subject {subject} in context {context} is in read-only mode")

    def config(self, subject: str, *, default_to_global: bool = False) -> dict[str, Any]:
        """Return the config of a subject, or the global one."""
        if not subject or default_to_global:
            return self.config_in_scope(subject)
        if subject not in self.state.configs:
            raise errors.config_not_found(subject)
        return {**self._default, **_config(self.state.configs[subject])}

    def config_in_scope(self, subject: str) -> dict[str, Any]:
        """Return the effective config of a subject: its own with what it inherits, its context's, or the global one."""
        configs = self.state.configs
        if subject and subject in configs:
            inherited = {name: value for name, value in _config(configs.get("", {})).items() if name in _INHERITED}
            return {**inherited, **self._default, **_config(configs[subject])}
        context = subjects.split(subject)[0]
        name = "" if context == subjects.DEFAULT_CONTEXT else f":{context}:"
        return {**self._default, **_config(configs.get(name) or configs.get("", {}))}

    def set_config(self, subject: str, body: dict[str, Any]) -> Change:
        """Change a config; fields that are left out keep their values."""
        level = body.get("compatibility")
        if level is not None and (not isinstance(level, str) or level.upper() not in Compatibility.__members__):
            raise errors.invalid_compatibility()
        body = _checked_config(body)
        if subject and not subjects.is_context(subject) and not subjects.is_valid(subject):
            raise errors.invalid_subject(subject)
        self.check_writable(subject)
        value = dict(self.state.configs.get(subject, {}))
        if subject:
            value["subject"] = subject
        for name in _CONFIG_FIELDS:
            if name in body:
                value[name] = body[name]
        if level is not None:
            value["compatibilityLevel"] = level.upper()
        shown = {
            "compatibility" if name == "compatibilityLevel" else name: entry for name, entry in _config(value).items()
        }
        return Change([(subject_key("CONFIG", subject), encode_value(value))], lambda: shown)

    def delete_config(self, subject: str) -> Change:
        """Delete a config; return its old value."""
        if subject and subject not in self.state.configs:
            raise errors.subject_not_found(subject)
        old = self.config(subject) if subject else self.config_in_scope("")
        self.check_writable(subject)
        return Change([(subject_key("CONFIG", subject), None)], lambda: old)

    def mode(self, subject: str, *, default_to_global: bool = False) -> str:
        """Return the mode of a subject, or the global one."""
        if not subject or default_to_global:
            return self.mode_in_scope(subject)
        if subject not in self.state.modes:
            raise errors.mode_not_found(subject)
        return self.state.modes[subject]

    def mode_in_scope(self, subject: str) -> str:
        """Return the effective mode of a subject."""
        modes = self.state.modes
        if modes.get("") == "READONLY_OVERRIDE":
            return "READONLY_OVERRIDE"
        for name in (subject, f":{subjects.split(subject)[0]}:", ""):
            if name in modes:
                return modes[name]
        return "READWRITE"

    def set_mode(self, subject: str, mode: object, *, force: bool) -> Change:
        """Change a mode. IMPORT requires that no schemas exist, unless forced."""
        if not isinstance(mode, str) or mode.upper() not in MODES:
            raise errors.invalid_mode()
        mode = mode.upper()
        records: list[tuple[bytes, bytes | None]] = []
        if mode == "IMPORT" and self.mode_in_scope(subject) != "IMPORT" and not force:
            concerned = [name for name in self.state.versions if subjects.covers(subject, name)]
            if any(self.state.active(name) for name in concerned):
                raise errors.not_permitted("Cannot import since found existing subjects")
            for version in (entry for name in concerned for entry in self.state.active(name, deleted=True)):
                if self.state.referrers(version.subject, version.version, deleted=True):
                    raise errors.reference_exists(version.subject, version.version)
                records.append((version.key(), None))
            records.append((subject_key("CLEAR_SUBJECT", subject), encode_value({"subject": subject or ""})))
        value = {"subject": subject, "mode": mode} if subject else {"mode": mode}
        records.append((subject_key("MODE", subject), encode_value(value)))
        return Change(records, lambda: mode)

    def delete_mode(self, subject: str, *, recursive: bool = False) -> Change:
        """Delete a mode, with `recursive` those of all subjects of a context too; return the old value, or None."""
        old = self.state.modes.get(subject)
        if old is None and subject and not recursive:
            raise errors.subject_not_found(subject)
        if old is None and not subject:
            old = self.mode_in_scope("")
        names = [subject]
        if recursive and (not subject or subjects.is_context(subject)):
            context = subjects.split(subject)[0]
            others = (name for name in self.state.modes if name not in ("", subject))
            names += [name for name in others if subjects.split(name)[0] == context]
        return Change([(subject_key("MODE", name), None) for name in names], lambda: old)


def _checked_config(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a config request with checked fields; 400 for a field of a wrong type."""
    checked = dict(body)
    for name in _FLAGS:
        if body.get(name) is not None and not isinstance(body[name], bool):
            raise errors.RegistryError(400, f'Cannot deserialize the body: "{name}" is true or false')
    for name in ("alias", "compatibilityGroup", "compatibilityPolicy"):
        if body.get(name) is not None and not isinstance(body[name], str):
            raise errors.RegistryError(400, f'Cannot deserialize the body: "{name}" is a string')
    if body.get("compatibilityPolicy") is not None:
        checked["compatibilityPolicy"] = body["compatibilityPolicy"].upper()
        if checked["compatibilityPolicy"] not in POLICIES:
            raise errors.RegistryError(400, f'Cannot deserialize the body: "compatibilityPolicy" is one of {POLICIES}')
    for name in ("defaultMetadata", "overrideMetadata"):
        if name in body:
            checked[name] = check_metadata(body[name], name)
    for name in ("defaultRuleSet", "overrideRuleSet"):
        if name in body:
            checked[name] = check_rule_set(body[name], name)
    return checked


def _config(value: dict[str, Any]) -> dict[str, Any]:
    return {name: value[name] for name in _CONFIG_FIELDS if value.get(name) is not None}
