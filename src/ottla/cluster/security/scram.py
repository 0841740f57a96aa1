"""SCRAM credentials in the metadata: AlterUserScramCredentials (Kafka's ScramControlManager). Not the exchange."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.cluster.features import SCRAM_FROM
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k51_alter_user_scram_credentials import AlterUserScramCredentialsResult
from ottla.protocol.record_schemas.metadata import RemoveUserScramCredentialRecord, UserScramCredentialRecord

if TYPE_CHECKING:
    from ottla.cluster.image import ClusterImage
    from ottla.protocol.messages.k51_alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest,
        ScramCredentialDeletion,
        ScramCredentialUpsertion,
    )
    from ottla.protocol.schema import Message


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """Stored SCRAM credential of one mechanism (RFC 5802)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @classmethod
    def from_record(cls, record: UserScramCredentialRecord) -> ScramCredential:
        """Create the credential from its record."""
        return cls(bytes(record.salt), bytes(record.stored_key), bytes(record.server_key), record.iterations)

    def to_record(self, user: str, mechanism: int) -> UserScramCredentialRecord:
        """Return the record that stores this credential."""
        return UserScramCredentialRecord(
            name=user,
            mechanism=mechanism,
            salt=self.salt,
            stored_key=self.stored_key,
            server_key=self.server_key,
            iterations=self.iterations,
        )


SCRAM_SHA_256: Final = 1
SCRAM_SHA_512: Final = 2
_HASHES: Final = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384


def credential_from_salted_password(
    mechanism: int, salt: bytes, salted_password: bytes, iterations: int
) -> ScramCredential:
    """Return the credential of a salted password (RFC 5802)."""
    name = _HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    return ScramCredential(salt, stored_key, hmac.digest(salted_password, b"Server Key", name), iterations)


def credential_from_password(mechanism: int, password: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a password, as `kafka-storage format --add-scram` stores it."""
    salted = hashlib.pbkdf2_hmac(_HASHES[mechanism], password, salt, iterations)
    return credential_from_salted_password(mechanism, salt, salted, iterations)


def alter_scram_credentials(
    image: ClusterImage, request: AlterUserScramCredentialsRequest
) -> tuple[list[AlterUserScramCredentialsResult], list[Message]]:
    """Set and remove credentials; each user may appear once, whatever the mechanism."""
    errors: dict[str, KafkaError] = {}
    deletions: dict[str, ScramCredentialDeletion] = {}
    upsertions: dict[str, ScramCredentialUpsertion] = {}
    for deletion in request.deletions:
        if deletion.name in errors:
            continue
        if deletions.pop(deletion.name, None) is not None:
            errors[deletion.name] = _twice()
            continue
        try:
            _check_deletion(image, deletion)
            deletions[deletion.name] = deletion
        except KafkaError as error:
            errors[deletion.name] = error
    for upsertion in request.upsertions:
        name = upsertion.name
        if name in errors:
            continue
        if deletions.pop(name, None) is not None or upsertions.pop(name, None) is not None:
            errors[name] = _twice()
            continue
        try:
            _check_upsertion(image, upsertion)
            upsertions[name] = upsertion
        except KafkaError as error:
            errors[name] = error
    records: list[Message] = [
        RemoveUserScramCredentialRecord(name=deletion.name, mechanism=deletion.mechanism)
        for deletion in deletions.values()
    ]
    for upsertion in upsertions.values():
        credential = credential_from_salted_password(
            upsertion.mechanism, bytes(upsertion.salt), bytes(upsertion.salted_password), upsertion.iterations
        )
        records.append(credential.to_record(upsertion.name, upsertion.mechanism))
    results = [AlterUserScramCredentialsResult(user=name, error_message=None) for name in (*deletions, *upsertions)]
    results += [
        AlterUserScramCredentialsResult(user=name, error_code=error.code, error_message=error.message)
        for name, error in errors.items()
    ]
    return results, records


def _twice() -> KafkaError:
    return KafkaError(ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")


def _check_user(image: ClusterImage, name: str, mechanism: int) -> None:
    if image.metadata_version < SCRAM_FROM:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "The current metadata.version does not support SCRAM")
    if not name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism not in _HASHES:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")


def _check_deletion(image: ClusterImage, deletion: ScramCredentialDeletion) -> None:
    _check_user(image, deletion.name, deletion.mechanism)
    if deletion.name not in image.scram.get(deletion.mechanism, {}):
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")


def _check_upsertion(image: ClusterImage, upsertion: ScramCredentialUpsertion) -> None:
    _check_user(image, upsertion.name, upsertion.mechanism)
    if upsertion.iterations < MIN_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if upsertion.iterations > MAX_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
