"""Read the decisions of exactly-once sinks from their bookkeeping groups; list and delete those groups."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.client.connection import ConnectionFailedError
from ottla.client.groups import delete_group, list_groups
from ottla.client.transactions import fence, list_transactions
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from ottla.spark.sink.decision import PREFIX, BookkeepingError, Decision, count_chunks, group_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.client.client import Client

_OFFSET_FETCH: Final = 9  # version 10 has topic ids instead of names
# The query of a group or transactional id; `task` is set for a task's transactional id and for a group of ottla 0.x.
_NAME: Final = re.compile(
    PREFIX + r"(?P<query>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:@\w+)?)(?:-(?P<task>\d+))?(?:\.\d+){0,2}"
)


def parse_name(name: str) -> tuple[str, int | None] | None:
    """Return query and task number of a group or transactional id; None if no exactly-once sink made it."""
    match = _NAME.fullmatch(name)
    return match and (match["query"], None if match["task"] is None else int(match["task"]))


def decided_batch(client: Client, query: str) -> int | None:
    """Return the last batch of a query that is decided.

    A decision that a dead driver left open does not count: only the next driver, which fences that one, can end it.
    """
    entries = _fetch(client, group_name(query), stable=False)
    return max(offset for offset, _ in entries) - 1 if entries else None


def read_decision(client: Client, query: str) -> Decision | None:
    """Return the last decision of a query; None if there is none. Raise BookkeepingError if it is damaged."""
    entries = _fetch(client, group_name(query))
    if not entries:
        return None
    offset, metadata = max(entries)
    chunks = [metadata]
    for number in range(1, count_chunks(query, metadata)):
        rest = dict(_fetch(client, group_name(query, number)))
        if offset not in rest:
            raise BookkeepingError(
                f"group {group_name(query, number)}, which holds a part of the decision about batch {offset - 1}, "
                "has no such offset: it was deleted or has expired"
            )
        chunks.append(rest[offset])
    return Decision.parse(query, offset - 1, chunks)


@dataclass(slots=True)
class SinkQuery:
    """Groups and transactional ids of a query."""

    query: str
    groups: list[str] = field(default_factory=list)
    transactional_ids: list[str] = field(default_factory=list)
    ongoing: list[str] = field(default_factory=list)
    """The transactional ids with an open transaction."""

    @property
    def task_groups(self) -> list[str]:
        """The groups of a sink before decisions, which had one per task."""
        return [group for group in self.groups if (parse_name(group) or ("", None))[1] is not None]


def list_queries(client: Client) -> dict[str, SinkQuery]:
    """Return every query with bookkeeping or transactional ids on the cluster."""
    queries: dict[str, SinkQuery] = {}

    def query_of(name: str) -> SinkQuery | None:
        parsed = parse_name(name)
        return None if parsed is None else queries.setdefault(parsed[0], SinkQuery(parsed[0]))

    for listed in client.retrying(lambda: list_groups(client)):
        query = query_of(listed.group)
        if query is not None:
            query.groups.append(listed.group)
    for _, state in client.retrying(lambda: list_transactions(client)):
        query = query_of(state.transactional_id)
        if query is not None:
            query.transactional_ids.append(state.transactional_id)
            if state.transaction_state == "Ongoing":
                query.ongoing.append(state.transactional_id)
    return queries


def open_transactions(client: Client, query: str) -> list[str]:
    """Return the transactional ids of a query's tasks that have an open transaction."""
    prefix = f"{PREFIX}{query}-"
    listed = client.retrying(lambda: list_transactions(client, ["Ongoing"]))
    return [state.transactional_id for _, state in listed if state.transactional_id.startswith(prefix)]


def delete_bookkeeping(client: Client, query: SinkQuery) -> None:
    """Abort and fence every transaction of a query, then delete its groups."""
    for transactional_id in query.transactional_ids:
        fence(client, transactional_id)
    for group in query.groups:
        try:
            delete_group(client, group)
        except KafkaError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise


def committed_by_tasks(client: Client, query: str, batch: int) -> dict[int, int]:
    """Return task numbers and rows of a batch that a sink before decisions committed, which had a group per task."""
    prefix = f"{PREFIX}{query}-"
    rows: dict[int, int] = {}
    for listed in client.retrying(lambda: list_groups(client)):
        task = listed.group.removeprefix(prefix)
        if listed.group.startswith(prefix) and task.isdigit():
            for offset, metadata in _fetch(client, listed.group):
                count = metadata.partition(":")[0]
                if offset == batch + 1:
                    rows[int(task)] = int(count) if count.isdigit() else 0
    return rows


def _fetch(client: Client, group: str, *, stable: bool = True) -> list[tuple[int, str]]:
    """Return offsets and metadata of a group on all topics; if `stable`, wait for the end of open transactions."""

    def fetch() -> list[tuple[int, str]]:
        connection = client.node(client.coordinator(group))
        version = min(connection.best_version(9), _OFFSET_FETCH)
        if version < 8:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "exactlyOnce needs Apache Kafka 3.0 or newer.")
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=None)], require_stable=stable
        )
        response = connection.send(request, OffsetFetchResponse, version=version).groups[0]
        _check(response.error_code, group)
        entries = []
        for topic in response.topics:
            for partition in topic.partitions:
                _check(partition.error_code, group)
                if partition.committed_offset > 0:
                    entries.append((partition.committed_offset, partition.metadata or ""))
        return entries

    return _retrying(client, group, fetch)


def _check(code: int, group: str) -> None:
    if code:
        raise KafkaError(code, f"offsets of {group}")


def _retrying(client: Client, group: str, fetch: Callable[[], list[tuple[int, str]]]) -> list[tuple[int, str]]:
    def attempt() -> list[tuple[int, str]]:
        try:
            return fetch()
        except (KafkaError, ConnectionFailedError):
            client.forget_coordinator(group)
            raise

    return client.retrying(attempt)
