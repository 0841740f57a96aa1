"""ListGroups (16): every version, the filters by state and type, and authorization."""

from __future__ import annotations

import pytest

from ottla.protocol.messages import k16_list_groups as k16

from .group_broker import GroupBroker, versions


@pytest.fixture
def listed_broker(group_broker: GroupBroker) -> GroupBroker:
    """A broker with a simple, a classic, a consumer and a share group."""
    group_broker.commit(1, group="simple")
    group_broker.stable_member("classic")
    group_broker.consumer_member("consumer")
    group_broker.share_member("share")
    return group_broker


@pytest.mark.parametrize("version", versions(16))
def test_all_groups_are_listed_in_every_version(listed_broker: GroupBroker, version: int) -> None:
    groups = listed_broker.ask(k16.ListGroupsRequest(), version).groups
    assert {group.group_id: group.protocol_type for group in groups} == {
        "simple": "",
        "classic": "consumer",
        "consumer": "consumer",
        "share": "share",
    }
    if version >= 5:
        assert {group.group_id: (group.group_type, group.group_state) for group in groups} == {
            "simple": ("classic", "Empty"),
            "classic": ("classic", "Stable"),
            "consumer": ("consumer", "Stable"),
            "share": ("share", "Stable"),
        }


@pytest.mark.parametrize(
    ("states", "types", "listed"),
    [
        (["empty"], [], {"simple"}),
        (["STABLE"], [], {"classic", "consumer", "share"}),
        ([], ["Classic"], {"simple", "classic"}),
        (["Stable"], ["share", "consumer"], {"share", "consumer"}),
        (["unknown"], [], set()),
    ],
)
def test_filters_select_by_state_and_type(
    listed_broker: GroupBroker, states: list[str], types: list[str], listed: set[str]
) -> None:
    response = listed_broker.ask(k16.ListGroupsRequest(states_filter=states, types_filter=types))
    assert {group.group_id for group in response.groups} == listed


def test_without_cluster_describe_only_authorized_groups_are_listed(listed_broker: GroupBroker) -> None:
    listed_broker.deny("kafka-cluster", "classic")
    assert {group.group_id for group in listed_broker.ask(k16.ListGroupsRequest()).groups} == {
        "simple",
        "consumer",
        "share",
    }
