"""DeleteGroups (42): every version, groups of each type, and errors."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k42_delete_groups as k42

from .group_broker import GROUP, GroupBroker, versions


def delete(broker: GroupBroker, *names: str, version: int = 2) -> dict[str, ErrorCode]:
    response = broker.ask(k42.DeleteGroupsRequest(groups_names=list(names)), version)
    assert len({result.group_id for result in response.results}) == len(response.results)
    return {result.group_id: ErrorCode(result.error_code) for result in response.results}


@pytest.mark.parametrize("version", versions(42))
def test_group_is_deleted_with_its_offsets_in_every_version(group_broker: GroupBroker, version: int) -> None:
    group_broker.commit(7)
    assert delete(group_broker, GROUP, version=version) == {GROUP: ErrorCode.NONE}
    assert group_broker.committed() == {}
    assert delete(group_broker, GROUP, version=version) == {GROUP: ErrorCode.GROUP_ID_NOT_FOUND}


def test_each_group_has_its_own_error(group_broker: GroupBroker) -> None:
    group_broker.stable_member("classic")
    group_broker.consumer_member("consumer")
    group_broker.share_member("share")
    group_broker.commit(1, group="simple")
    assert delete(group_broker, "classic", "consumer", "share", "simple", "none") == {
        "classic": ErrorCode.NON_EMPTY_GROUP,
        "consumer": ErrorCode.NON_EMPTY_GROUP,
        "share": ErrorCode.NON_EMPTY_GROUP,
        "simple": ErrorCode.NONE,
        "none": ErrorCode.GROUP_ID_NOT_FOUND,
    }


def test_share_group_without_members_is_deleted_with_its_state(group_broker: GroupBroker) -> None:
    group_broker.share_member()
    group_broker.pause()
    group_broker.leave_share_group()
    assert delete(group_broker, GROUP) == {GROUP: ErrorCode.NONE}
    assert delete(group_broker, GROUP) == {GROUP: ErrorCode.GROUP_ID_NOT_FOUND}


def test_group_that_occurs_twice_is_deleted_once(group_broker: GroupBroker) -> None:
    group_broker.commit(7)
    assert delete(group_broker, GROUP, GROUP) == {GROUP: ErrorCode.NONE}


def test_denied_group_is_kept(group_broker: GroupBroker) -> None:
    group_broker.commit(7)
    group_broker.commit(8, group="h")
    group_broker.deny(GROUP)
    assert delete(group_broker, GROUP, "h") == {GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED, "h": ErrorCode.NONE}
    group_broker.deny()
    assert group_broker.committed() != {}
