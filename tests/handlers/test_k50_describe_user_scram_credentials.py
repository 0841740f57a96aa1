"""DescribeUserScramCredentials (50) and AlterUserScramCredentials (51): set, describe, delete, refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k50_describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from ottla.protocol.messages.k51_alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tests.conversations.local_talk import LocalTalk

if TYPE_CHECKING:
    from collections.abc import Iterator

SHA_256, SHA_512 = 1, 2


@pytest.fixture
def local() -> Iterator[LocalTalk]:
    talk = LocalTalk({})
    yield talk
    talk.close()


def upsert(local: LocalTalk, name: str, *, mechanism: int = SHA_256, iterations: int = 4096) -> ErrorCode:
    credential = ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=bytes(32)
    )
    request = AlterUserScramCredentialsRequest(upsertions=[credential])
    return ErrorCode(local.quietly(request, AlterUserScramCredentialsResponse).results[0].error_code)


def delete(local: LocalTalk, name: str, mechanism: int = SHA_256) -> ErrorCode:
    request = AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion(name=name, mechanism=mechanism)])
    return ErrorCode(local.quietly(request, AlterUserScramCredentialsResponse).results[0].error_code)


def describe(local: LocalTalk, *names: str) -> dict[str, tuple[ErrorCode, list[tuple[int, int]]]]:
    request = DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in names] if names else None)
    response = local.quietly(request, DescribeUserScramCredentialsResponse)
    return {
        result.user: (
            ErrorCode(result.error_code),
            [(info.mechanism, info.iterations) for info in result.credential_infos],
        )
        for result in response.results
    }


def test_credentials_are_described_without_secrets(local: LocalTalk) -> None:
    assert upsert(local, "alice") is ErrorCode.NONE
    assert upsert(local, "alice", mechanism=SHA_512, iterations=8192) is ErrorCode.NONE
    local.restart()
    assert describe(local) == {"alice": (ErrorCode.NONE, [(SHA_256, 4096), (SHA_512, 8192)])}
    assert describe(local, "bob") == {"bob": (ErrorCode.RESOURCE_NOT_FOUND, [])}
    assert describe(local, "alice", "alice")["alice"][0] is ErrorCode.DUPLICATE_RESOURCE


def test_deleted_credential_is_gone(local: LocalTalk) -> None:
    upsert(local, "alice")
    assert delete(local, "alice", SHA_512) is ErrorCode.RESOURCE_NOT_FOUND
    assert delete(local, "alice") is ErrorCode.NONE
    assert describe(local) == {}


@pytest.mark.parametrize(
    ("name", "mechanism", "iterations", "error"),
    [
        ("", SHA_256, 4096, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ("alice", SHA_256, 4095, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ("alice", SHA_256, 16385, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ("alice", 9, 4096, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
)
def test_invalid_credential_is_refused(
    local: LocalTalk, name: str, mechanism: int, iterations: int, error: ErrorCode
) -> None:
    assert upsert(local, name, mechanism=mechanism, iterations=iterations) is error
    assert describe(local) == {}
