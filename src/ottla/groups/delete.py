"""DeleteGroups: delete groups without members together with their committed offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.groups.offsets.requests import tombstones_of_group
from ottla.groups.outcome import Outcome
from ottla.protocol.messages.k42_delete_groups import DeletableGroupResult

if TYPE_CHECKING:
    from ottla.groups.shard import Shard


def delete_group(shard: Shard, group_id: str) -> Outcome[DeletableGroupResult]:
    """Write the tombstones of a group and of its offsets; raise NON_EMPTY_GROUP if it has members.

    The share-group state of a share group has to be deleted before: `share.offsets.delete_group`.
    """
    group = shard.group(group_id)
    group.validate_delete()
    written = [*tombstones_of_group(shard, group_id), *group.tombstones()]
    return Outcome(DeletableGroupResult(group_id=group_id), written)
