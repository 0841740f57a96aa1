"""Names of subjects with their contexts: `:.context:subject`, or `subject` in the default context."""

from __future__ import annotations

from typing import Final

DEFAULT_CONTEXT: Final = "."
WILDCARD: Final = ":*:"


def normalize(subject: str) -> str:
    """Return a subject without the prefix of the default context."""
    context, name = split(subject)
    return name if context == DEFAULT_CONTEXT else f":{context}:{name}"


def split(subject: str) -> tuple[str, str]:
    """Return the context and the name in it."""
    if subject.startswith(":.") and ":" in subject[1:]:
        context, _, name = subject[1:].partition(":")
        return context, name
    return DEFAULT_CONTEXT, subject


def in_context(context: str, subject: str) -> str:
    """Return a subject that a path below `/contexts/CONTEXT` names; a subject with its own context keeps it."""
    context = context.strip(":")
    if not context.startswith("."):
        context = f".{context}"
    return normalize(subject) if subject.startswith(":.") or context == DEFAULT_CONTEXT else f":{context}:{subject}"


def is_context(subject: str) -> bool:
    """Return whether this names a whole context, as in `:.context:`."""
    return subject.startswith(":.") and subject.endswith(":") and not split(subject)[1]


def covers(scope: str, subject: str) -> bool:
    """Return whether a scope includes a subject: the subject itself, its context, or everything (empty)."""
    if not scope or scope == subject:
        return True
    return is_context(scope) and split(scope)[0] == split(subject)[0]


def is_valid(subject: str) -> bool:
    """Return whether a subject may be registered."""
    _, name = split(subject)
    reserved = name in ("__GLOBAL", "__EMPTY")
    return (
        bool(name) and not reserved and not any(ord(character) < 32 or ord(character) == 127 for character in subject)
    )


def matches(subject: str, prefix: str) -> bool:
    """Return whether a listing with a subject prefix shows a subject; `:*:` means every context."""
    if prefix.startswith(WILDCARD):
        return split(subject)[1].startswith(prefix[len(WILDCARD) :])
    context, name = split(prefix)
    own, rest = split(subject)
    return context == own and rest.startswith(name)
