"""The assignor of share groups, against recorded assignments of Kafka's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ottla.groups.modern import SubscriptionType
from ottla.groups.share.assignor import ShareMemberSpec, assign
from ottla.protocol.uuids import Uuid

# What the SimpleAssignor of Apache Kafka 4.3.1 made of groups of all sizes, some with an assignment from before.
CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "shares" / "simple-assignor-4.3.1.json").read_text()
)


@pytest.mark.parametrize("case", CASES, ids=map(str, range(len(CASES))))
def test_assignment_equals_kafkas(case: dict[str, Any]) -> None:
    members = {
        member_id: ShareMemberSpec(
            tuple(Uuid.parse(topic) for topic in member["topics"]),
            {Uuid.parse(topic): tuple(partitions) for topic, partitions in member["target"].items()},
        )
        for member_id, member in case["members"].items()
    }
    assignable = {Uuid.parse(topic): partitions for topic, (_, partitions) in case["topics"].items()}
    kind = SubscriptionType.HOMOGENEOUS if case["homogeneous"] else SubscriptionType.HETEROGENEOUS
    result = {
        member_id: {str(topic): list(partitions) for topic, partitions in target.items()}
        for member_id, target in assign(members, assignable, kind).items()
    }
    expected = {
        member_id: {topic: partitions for topic, partitions in target.items() if partitions}
        for member_id, target in case["assigned"].items()
    }
    assert result == expected


def test_no_subscriptions_give_no_assignment() -> None:
    assert assign({}, {}, SubscriptionType.HOMOGENEOUS) == {}
    assert assign({"m": ShareMemberSpec((), {})}, {}, SubscriptionType.HOMOGENEOUS) == {}
