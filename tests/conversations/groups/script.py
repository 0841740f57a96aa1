"""What the conversations about groups are made of: their list, and steps that several of them take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.messages import k42_delete_groups as k42
from ottla.protocol.messages import k44_incremental_alter_configs as k44
from ottla.protocol.messages import k47_offset_delete as k47
from tests.conversations.groups.talk import GroupTalk, subscription

if TYPE_CHECKING:
    from collections.abc import Callable

NEWS, CHANGED, CHANGED_AGAIN = subscription("news"), subscription("news", data=b"1"), subscription("more")
WRONG_EXPRESSIONS = (
    "(",
    ")",
    "[a",
    "a{1001}",
    "*a",
    "a**",
    "\\",
    r"\8",
    "[z-a]",
    "(?",
    "(?z)",
    "(?P<n",
    "(?P<n>a)(?P<n>b)",
    "(?=a)",
    "[[:no:]]",
)
CONVERSATIONS: dict[str, Callable[[GroupTalk, str], None]] = {}


def conversation(function: Callable[[GroupTalk, str], None]) -> Callable[[GroupTalk, str], None]:
    CONVERSATIONS[function.__name__] = function
    return function


def delete(talk: GroupTalk, *groups: str) -> None:
    for version in range(3):
        talk.ask(k42.DeleteGroupsRequest(groups_names=list(groups)), k42.DeleteGroupsResponse, version)


def delete_offsets(talk: GroupTalk, group: str, *topic_partitions: tuple[str, int]) -> None:
    topics = [
        k47.OffsetDeleteRequestTopic(name=name, partitions=[k47.OffsetDeleteRequestPartition(partition_index=index)])
        for name, index in topic_partitions
    ]
    talk.ask(k47.OffsetDeleteRequest(group_id=group, topics=topics), k47.OffsetDeleteResponse)


def configure(talk: GroupTalk, group: str, name: str, value: str) -> None:
    """Change a config of a group; what is asked next is answered by it."""
    change = k44.AlterableConfig(name=name, config_operation=0, value=value)
    resource = k44.AlterConfigsResource(resource_type=32, resource_name=group, configs=[change])
    talk.ask(k44.IncrementalAlterConfigsRequest(resources=[resource]), k44.IncrementalAlterConfigsResponse)
    talk.settle()
