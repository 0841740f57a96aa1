"""DescribeClientQuotas (48) and AlterClientQuotas (49): set, remove, filter, and errors of single entities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k49_alter_client_quotas as k49
from ottla.protocol.messages.k48_describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from tests.conversations.local_talk import LocalTalk

if TYPE_CHECKING:
    from collections.abc import Iterator

EXACT, DEFAULT, ANY = 0, 1, 2
RATE = "producer_byte_rate"


@pytest.fixture
def local() -> Iterator[LocalTalk]:
    talk = LocalTalk({})
    yield talk
    talk.close()


def alter(local: LocalTalk, user: str | None, value: float | None, *, key: str = RATE, dry: bool = False) -> ErrorCode:
    operation = k49.OpData(key=key, value=value or 0.0, remove=value is None)
    entity = [k49.EntityData(entity_type="user", entity_name=user)]
    request = k49.AlterClientQuotasRequest(
        entries=[k49.RequestEntryData(entity=entity, ops=[operation])], validate_only=dry
    )
    return ErrorCode(local.quietly(request, k49.AlterClientQuotasResponse).entries[0].error_code)


def describe(local: LocalTalk, match_type: int, user: str | None = None, version: int = 1) -> dict[str | None, float]:
    component = ComponentData(entity_type="user", match_type=match_type, match=user)
    request = DescribeClientQuotasRequest(components=[component], strict=True)
    response = local.quietly(request, DescribeClientQuotasResponse, version=version)
    assert response.error_code == ErrorCode.NONE
    return {entry.entity[0].entity_name: entry.values[0].value for entry in response.entries or []}


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_described_by_exact_default_and_any(local: LocalTalk, version: int) -> None:
    assert [alter(local, "alice", 100.0), alter(local, None, 50.0)] == [ErrorCode.NONE] * 2
    assert describe(local, EXACT, "alice", version) == {"alice": 100.0}
    assert describe(local, DEFAULT, None, version) == {None: 50.0}
    assert describe(local, ANY, None, version) == {"alice": 100.0, None: 50.0}
    assert describe(local, EXACT, "bob", version) == {}


def test_removed_quota_is_gone_after_a_restart(local: LocalTalk) -> None:
    alter(local, "alice", 100.0)
    alter(local, "bob", 10.0)
    alter(local, "alice", None)
    local.restart()
    assert describe(local, ANY) == {"bob": 10.0}


def test_validate_only_changes_nothing(local: LocalTalk) -> None:
    assert alter(local, "alice", 100.0, dry=True) is ErrorCode.NONE
    assert describe(local, ANY) == {}


@pytest.mark.parametrize(("key", "value"), [("no_such_quota", 1.0), (RATE, -1.0)])
def test_invalid_quota_is_refused(local: LocalTalk, key: str, value: float) -> None:
    assert alter(local, "alice", value, key=key) is ErrorCode.INVALID_REQUEST
    assert describe(local, ANY) == {}
