"""Coordinators load their partitions in pieces, and answer COORDINATOR_LOAD_IN_PROGRESS until a partition is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.broker.coordinators import loading as coordinator_loading
from ottla.groups.offsets.store import Offsets
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k09_offset_fetch as k09
from ottla.protocol.messages import k65_describe_transactions as k65
from ottla.protocol.messages import k87_read_share_group_state_summary as k87
from ottla.records.control import ControlType

from .test_unreadable_records import GROUPS, SHARES, TRANSACTIONS, Node, name_in

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITION = 1
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node that was started again and has loaded one record of each partition at most."""
    node = Node()
    node.close()
    monkeypatch.setattr(coordinator_loading, "START_WORK", 1)
    monkeypatch.setattr(coordinator_loading, "PIECE", 1)
    node.open()
    yield node
    if node.running:
        node.close()


def committed_offset(node: Node, group: str) -> tuple[int, int]:
    """Return the error and the committed offset of news-0."""
    topic = k09.OffsetFetchRequestTopics(topic_id=node.topic_id, partition_indexes=[0])
    request = k09.OffsetFetchRequest(groups=[k09.OffsetFetchRequestGroup(group_id=group, topics=[topic])])
    response = node.ask_now(request, k09.OffsetFetchResponse).groups[0]
    offset = response.topics[0].partitions[0].committed_offset if response.topics else -1
    return response.error_code, offset


def transaction_error(node: Node, transactional_id: str) -> int:
    request = k65.DescribeTransactionsRequest(transactional_ids=[transactional_id])
    return int(node.ask_now(request, k65.DescribeTransactionsResponse).transaction_states[0].error_code)


def share_state_error(node: Node, group: str) -> int:
    partition = k87.PartitionData(partition=0, leader_epoch=0)
    request = k87.ReadShareGroupStateSummaryRequest(
        group_id=group, topics=[k87.ReadStateSummaryData(topic_id=node.topic_id, partitions=[partition])]
    )
    response = node.ask_now(request, k87.ReadShareGroupStateSummaryResponse)
    return int(response.results[0].partitions[0].error_code)


def errors(node: Node) -> tuple[int, int, int]:
    return (
        committed_offset(node, name_in(PARTITION, "simple"))[0],
        transaction_error(node, name_in(PARTITION, "txn")),
        share_state_error(node, node.share_group(PARTITION)),
    )


def test_coordinators_refuse_requests_until_they_are_loaded(node: Node) -> None:
    assert errors(node) == (LOADING, LOADING, LOADING)
    node.wait_until(lambda: errors(node) == (0, 0, 0), "the coordinators are not loaded")
    assert committed_offset(node, name_in(PARTITION, "simple"))[1] >= 0


def test_loading_takes_a_turn_of_the_loop_per_piece(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    loading = node.runtime.coordinator_loading
    turns: list[None] = []
    run_turn = loading._run_turn
    monkeypatch.setattr(loading, "_run_turn", lambda: (turns.append(None), run_turn()))
    node.wait_until(lambda: errors(node) == (0, 0, 0), "the coordinators are not loaded")
    records = [node.runtime.partitions[topic, PARTITION].log.log_end_offset for topic in (GROUPS, TRANSACTIONS, SHARES)]
    assert len(turns) > sum(records)


def test_records_appended_while_loading_are_replayed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    assert errors(node) == (LOADING, LOADING, LOADING)
    log = node.runtime.partitions[GROUPS, PARTITION].log
    log.append_marker(ControlType.COMMIT, 0, producer_id=7, producer_epoch=0, coordinator_epoch=0)
    replayed: list[int] = []
    complete = Offsets.complete_transaction

    def completed(offsets: Offsets, producer_id: int, *, committed: bool) -> None:
        replayed.append(producer_id)
        complete(offsets, producer_id, committed=committed)

    monkeypatch.setattr(Offsets, "complete_transaction", completed)
    node.wait_until(lambda: errors(node) == (0, 0, 0), "the coordinators are not loaded")
    assert replayed == [7]


def test_marker_appended_after_the_last_batch_was_read_is_replayed(node: Node) -> None:
    partition = node.runtime.partitions[GROUPS, PARTITION]
    batches = coordinator_loading.read_batches(partition)
    pieces = []
    for piece in batches:
        pieces.append(piece)
        if piece == b"" and len(pieces) < 4:
            partition.log.append_marker(ControlType.COMMIT, 0, producer_id=7, producer_epoch=0, coordinator_epoch=0)
    assert [len(piece) > 0 for piece in pieces] == [True, False, True, False, True, False][: len(pieces)]
    assert pieces[-1] == b""


def test_unload_stops_loading(node: Node) -> None:
    broker = node.runtime.nodes[1]
    loading = node.runtime.coordinator_loading
    for topic in (GROUPS, TRANSACTIONS, SHARES):
        loading.unload(broker, node.runtime.partitions[topic, PARTITION])
    node.wait_until(lambda: not loading._running, "loading does not end")
    refused = ErrorCode.NOT_COORDINATOR
    assert errors(node) == (refused, refused, refused)


def test_partition_may_be_loaded_again_while_it_is_loading(node: Node) -> None:
    broker = node.runtime.nodes[1]
    for topic in (GROUPS, TRANSACTIONS, SHARES):
        partition = node.runtime.partitions[topic, PARTITION]
        node.runtime.coordinator_loading.unload(broker, partition)
        node.runtime.coordinator_loading.load(broker, partition)
    assert errors(node) == (LOADING, LOADING, LOADING)
    node.wait_until(lambda: errors(node) == (0, 0, 0), "the coordinators are not loaded")


def test_stop_while_loading_leaves_a_directory_that_loads(node: Node) -> None:
    assert node.runtime.coordinator_loading._running
    node.restart()
    node.wait_until(lambda: errors(node) == (0, 0, 0), "the coordinators are not loaded")
