"""Metadata and rule sets of schemas: what may be stored, how configs and earlier versions add to them, their hash.

A rule set is stored and returned; the registry does not execute rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.registry.errors import RegistryError, invalid_rule_set

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Json = dict[str, Any]

VERSION_PROPERTY: Final = "confluent:version"
_RULE_LISTS: Final = {
    "migrationRules": ("Migration", ("UPGRADE", "DOWNGRADE", "UPDOWN")),
    "domainRules": ("Domain", ("WRITE", "READ", "WRITEREAD")),
    "encodingRules": ("Encoding", ("WRITE", "READ", "WRITEREAD")),
}
_MODES: Final = frozenset(mode for _, modes in _RULE_LISTS.values() for mode in modes)
_TEXTS: Final = ("name", "doc", "kind", "mode", "type", "expr", "onSuccess", "onFailure")
_MAX_NAME: Final = 64


def check_metadata(value: Any, name: str) -> Json | None:
    """Return metadata with its keys in a fixed order; 400 if it has another shape."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _malformed(name, "an object with tags, properties and sensitive")
    tags, properties, sensitive = (value.get(part) for part in ("tags", "properties", "sensitive"))
    checked: Json = {}
    if tags is not None:
        if not isinstance(tags, dict) or not all(map(_is_texts, tags.values())):
            raise _malformed(f"{name}.tags", "an object of lists of strings")
        checked["tags"] = {path: sorted(set(entries)) for path, entries in sorted(tags.items())}
    if properties is not None:
        if not isinstance(properties, dict) or not all(isinstance(entry, str) for entry in properties.values()):
            raise _malformed(f"{name}.properties", "an object of strings")
        checked["properties"] = dict(sorted(properties.items()))
    if sensitive is not None:
        if not _is_texts(sensitive):
            raise _malformed(f"{name}.sensitive", "a list of strings")
        checked["sensitive"] = sorted(set(sensitive))
    return checked


def check_rule_set(value: Any, name: str) -> Json | None:
    """Return a rule set; 400 if it has another shape, 42210 if a rule is invalid."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _malformed(name, "an object with migrationRules, domainRules and encodingRules")
    names: set[str] = set()
    for part, (kind, modes) in _RULE_LISTS.items():
        rules = value.get(part)
        if rules is None:
            continue
        if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
            raise _malformed(f"{name}.{part}", "a list of objects")
        for rule in rules:
            _check_rule(rule, f"{name}.{part}")
            if rule.get("name") in names:
                raise invalid_rule_set(f"Found rule with duplicate name '{rule['name']}'")
            names.add(rule["name"])
            if rule.get("mode") not in modes:
                raise invalid_rule_set(f"{kind} rules can only be {', '.join(modes)}")
    return value


def _check_rule(rule: Json, field: str) -> None:
    for part in _TEXTS:
        if rule.get(part) is not None and not isinstance(rule[part], str):
            raise _malformed(f"{field}.{part}", "a string")
    if rule.get("mode") is not None and rule["mode"] not in _MODES:
        raise _malformed(f"{field}.mode", f"one of {', '.join(sorted(_MODES))}")
    if rule.get("tags") is not None and not _is_texts(rule["tags"]):
        raise _malformed(f"{field}.tags", "a list of strings")
    params = rule.get("params")
    if params is not None and not (isinstance(params, dict) and all(isinstance(text, str) for text in params.values())):
        raise _malformed(f"{field}.params", "an object of strings")
    rule_name = rule.get("name")
    if rule_name is None:
        raise invalid_rule_set("Missing rule name")
    if not rule_name:
        raise invalid_rule_set("Empty rule name")
    if len(rule_name) > _MAX_NAME:
        raise invalid_rule_set("Rule name too long")
    if not (rule_name[0].isalpha() or rule_name[0] == "_"):
        raise invalid_rule_set(f"Illegal initial character in rule name: {rule_name}")
    if not all(character.isalnum() or character in "_-" for character in rule_name):
        raise invalid_rule_set(f"Illegal character in rule name: {rule_name}")
    if rule.get("type") is None:
        raise invalid_rule_set("Missing rule type")
    if rule.get("mode") not in (None, "WRITEREAD", "UPDOWN"):
        for action in ("onSuccess", "onFailure"):
            if "," in (rule.get(action) or ""):
                raise invalid_rule_set("Multiple actions only valid with WRITEREAD and UPDOWN")


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)


def _malformed(name: str, shape: str) -> RegistryError:
    return RegistryError(400, f'Cannot deserialize the body: "{name}" is {shape}')


# Defaults, overrides and inheritance


def merge_metadata(old: Json | None, new: Json | None) -> Json | None:
    """Return metadata in which `new` takes precedence."""
    if old is None or new is None:
        return new if old is None else old
    merged: Json = {}
    for part in ("tags", "properties"):
        entries = {**(old.get(part) or {}), **(new.get(part) or {})}
        if entries:
            merged[part] = dict(sorted(entries.items()))
    sensitive = sorted({*(old.get("sensitive") or ()), *(new.get("sensitive") or ())})
    return {**merged, "sensitive": sensitive} if sensitive else merged


def merge_rule_sets(old: Json | None, new: Json | None) -> Json | None:
    """Return a rule set in which rules of `new` replace those of the same name."""
    if old is None or new is None:
        return new if old is None else old
    merged: Json = {}
    for part in _RULE_LISTS:
        later = new.get(part) or []
        names = {rule["name"] for rule in later}
        rules = [rule for rule in old.get(part) or [] if rule["name"] not in names] + later
        if rules:
            merged[part] = rules
    enable_at = new.get("enableAt") or old.get("enableAt")
    return {**merged, "enableAt": enable_at} if enable_at else merged


def with_version(metadata: Json | None, version: int) -> Json:
    """Return metadata with the property `confluent:version`."""
    properties = {**((metadata or {}).get("properties") or {}), VERSION_PROPERTY: str(version)}
    return {**(metadata or {}), "properties": dict(sorted(properties.items()))}


def without_version(metadata: Json | None) -> Json:
    """Return the parts of metadata that are not empty, without the property `confluent:version`."""
    parts = dict(metadata or {})
    properties = parts.get("properties") or {}
    parts["properties"] = {name: text for name, text in properties.items() if name != VERSION_PROPERTY}
    return {name: part for name, part in parts.items() if part}


def stated_version(metadata: Json | None) -> str | None:
    """Return the property `confluent:version`."""
    text = ((metadata or {}).get("properties") or {}).get(VERSION_PROPERTY)
    return None if text is None else str(text)


# Hash


def hash_metadata(metadata: Json, update: Callable[[bytes], None]) -> None:
    """Feed metadata to a digest as Confluent does: keys in order, no separators."""
    for name, tags in sorted((metadata.get("tags") or {}).items()):
        update(name.encode() + "".join(sorted(tags)).encode())
    for name, text in sorted((metadata.get("properties") or {}).items()):
        update(name.encode() + str(text).encode())
    update("".join(sorted(metadata.get("sensitive") or ())).encode())


def hash_rule_set(rule_set: Json, update: Callable[[bytes], None]) -> None:
    """Feed a rule set to a digest as Confluent does."""
    for part in _RULE_LISTS:
        for rule in rule_set.get(part) or ():
            for text in _hashed_texts(rule):
                update(text.encode())
            if rule.get("disabled"):
                update(b"\1")
    update(str(rule_set.get("enableAt") or "").encode())


def _hashed_texts(rule: Json) -> Iterator[str]:
    for part in ("name", "doc", "kind", "mode", "type"):
        yield rule.get(part) or ""
    yield from sorted(rule.get("tags") or ())
    for name, text in sorted((rule.get("params") or {}).items()):
        yield name + text
    for part in ("expr", "onSuccess", "onFailure"):
        yield rule.get(part) or ""
