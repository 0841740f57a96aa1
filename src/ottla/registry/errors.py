"""Refusals of the registry with Confluent's status codes, error codes and messages."""

from __future__ import annotations


class RegistryError(Exception):
    """A refusal: an HTTP status, an error code and a message."""

    def __init__(self, code: int, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status if status is not None else code if code < 1000 else code // 100


def subject_not_found(subject: str) -> RegistryError:
    """Return 40401."""
    return RegistryError(40401, f"Subject '{subject}' not found.")


def version_not_found(version: int) -> RegistryError:
    """Return 40402."""
    return RegistryError(40402, f"Version {version} not found.")


def schema_not_found(identifier: object = None) -> RegistryError:
    """Return 40403."""
    return RegistryError(40403, "Schema not found" if identifier is None else f"Schema {identifier} not found")


def subject_soft_deleted(subject: str) -> RegistryError:
    """Return 40404."""
    return RegistryError(40404, f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently")


def subject_not_soft_deleted(subject: str) -> RegistryError:
    """Return 40405."""
    return RegistryError(40405, f"Subject '{subject}' was not deleted first before being permanently deleted")


def version_soft_deleted(subject: str, version: int) -> RegistryError:
    """Return 40406."""
    message = f"Subject '{subject}' Version {version} was soft deleted.Set permanent=true to delete permanently"
    return RegistryError(40406, message)


def version_not_soft_deleted(subject: str, version: int) -> RegistryError:
    """Return 40407."""
    message = f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted"
    return RegistryError(40407, message)


def config_not_found(subject: str) -> RegistryError:
    """Return 40408."""
    return RegistryError(40408, f"Subject '{subject}' does not have subject-level compatibility configured")


def mode_not_found(subject: str) -> RegistryError:
    """Return 40409."""
    return RegistryError(40409, f"Subject '{subject}' does not have subject-level mode configured")


def incompatible(message: str) -> RegistryError:
    """Return 409; Confluent's error code is the status itself."""
    return RegistryError(409, message)


def invalid_schema(message: str) -> RegistryError:
    """Return 42201."""
    return RegistryError(42201, message)


def invalid_version(version: object) -> RegistryError:
    """Return 42202."""
    return RegistryError(
        42202,
        f"The specified version '{version}' is not a valid version id. Allowed values are between [1, 2^31-1] and the "
        'string "latest"',
    )


def invalid_compatibility() -> RegistryError:
    """Return 42203."""
    return RegistryError(
        42203,
        "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, "
        "forward_transitive, and full_transitive",
    )


def invalid_mode() -> RegistryError:
    """Return 42204."""
    return RegistryError(42204, "Invalid mode. Valid values are READWRITE, READONLY, IMPORT and FORWARD.")


def not_permitted(message: str) -> RegistryError:
    """Return 42205."""
    return RegistryError(42205, message)


def reference_exists(subject: str, version: int) -> RegistryError:
    """Return 42206."""
    key = f"{{magic=1,keytype=SCHEMA,subject={subject},version={version}}}"
    return RegistryError(42206, f"One or more references exist to the schema {key}.")


def id_does_not_match(schema_id: int) -> RegistryError:
    """Return 42207."""
    return RegistryError(42207, f"Schema already registered with id {schema_id} instead of input id")


def invalid_subject(subject: str) -> RegistryError:
    """Return 42208."""
    return RegistryError(42208, f"The specified subject '{subject}' is not a valid.")


def schema_too_large(message: str) -> RegistryError:
    """Return 42209."""
    return RegistryError(42209, message)


def invalid_rule_set(message: str) -> RegistryError:
    """Return 42210."""
    return RegistryError(42210, message)


def context_not_empty(context: str) -> RegistryError:
    """Return 42211."""
    return RegistryError(42211, f"The specified context '{context}' is not empty.")


def unauthorized() -> RegistryError:
    """Return 401: the request has no valid user and password."""
    return RegistryError(401, "Unauthorized")


def denied(right: str, subject: str) -> RegistryError:
    """Return 40301: the user lacks a right on a subject."""
    return RegistryError(40301, f"User is denied operation {right.capitalize()} on Subject: {subject or '*'}")


def timed_out() -> RegistryError:
    """Return 50002: a write was not read back in time."""
    return RegistryError(50002, "Register operation timed out: the topic _schemas cannot be read")


def store_failed(message: str) -> RegistryError:
    """Return 50001: the topic cannot be read or written."""
    return RegistryError(50001, message)
