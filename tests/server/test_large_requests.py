"""Large requests of every API are handled in parts, with the response of a request that is handled whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ottla.handlers import k01_fetch, k24_add_partitions_to_txn, k75_describe_topic_partitions
from ottla.handlers.registry import apis
from ottla.handlers.splitting import divide_by, join
from ottla.pending import Pending
from ottla.protocol.api import request_class, response_class
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import encode_request
from ottla.protocol.messages import k01_fetch as fetch_messages
from ottla.protocol.messages import k02_list_offsets as k02
from ottla.protocol.messages import k09_offset_fetch as k09
from ottla.protocol.messages import k19_create_topics as k19
from ottla.protocol.messages import k24_add_partitions_to_txn as k24
from ottla.protocol.messages import k75_describe_topic_partitions as k75
from ottla.server import dispatch
from ottla.server.dispatch import Dispatch
from tests.conversations.local_talk import LocalTalk

from .large_requests import array_paths, fill

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.session import Call
    from ottla.protocol.schema import Message

COUNT = 1000
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "2",
}
WHOLE = {
    0: "validated in workers; bounded by its records",
    1: "reads partitions in pieces",
    3: "describes topics in pieces",
    8: "a commit is one batch",
    11: "one member of one group",
    13: "one group",
    14: "one group",
    16: "filters are sets",
    28: "a commit is one batch",
    35: "names are put into a set",
    38: "one token",
    41: "names are put into a set",
    46: "lists reassignments, not what is requested",
    48: "a filter",
    57: "the number of features is bounded by those that exist",
    66: "filters are sets",
    68: "one member of one group",
    74: "a filter",
    75: "describes topics in pieces",
    76: "one member of one group",
    78: "bounded by the partitions of the share session",
    79: "bounded by the partitions of the share session",
    80: "one voter",
    88: "one member of one group",
}
"""APIs with arrays whose requests are not divided, and why."""


UNORDERED = {20}
"""APIs whose response has refused elements first, in each part."""


def with_arrays() -> list[int]:
    return [key for key in apis() if array_paths(request_class(key))]


def divided() -> list[tuple[int, tuple[str, ...]]]:
    cases = []
    for key, api in apis().items():
        if api.split is not None:
            present = array_paths(request_class(key), api.versions[-1])
            cases += [(key, path) for path in api.split.paths if any(other[: len(path)] == path for other in present)]
    return cases


def test_every_api_with_arrays_is_divided_or_has_a_reason() -> None:
    undeclared = [key for key in with_arrays() if apis()[key].split is None]
    assert undeclared == sorted(WHOLE)


class Node(LocalTalk):
    """A node that counts the parts it handles."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(SETTINGS)
        self.create("t", 2)
        self.parts: list[Any] = []
        handle_part = Dispatch._handle_part

        def counted(handling: Dispatch, call: Call, part: Any, refused: Any) -> Any:
            self.parts.append(part)
            return handle_part(handling, call, part, refused)

        monkeypatch.setattr(Dispatch, "_handle_part", counted)

    def ask(self, request: Message) -> Any:
        key = request.__schema__.api_key
        assert key is not None
        return self.quietly(request, response_class(key))


@pytest.fixture
def make_node(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Node]:
    return lambda: Node(monkeypatch)


@pytest.mark.parametrize(("key", "path"), divided(), ids=lambda value: value if isinstance(value, int) else value[0])
def test_divided_request_has_the_response_of_a_whole_one(
    make_node: Callable[[], Node], monkeypatch: pytest.MonkeyPatch, key: int, path: tuple[str, ...]
) -> None:
    api = apis()[key]
    assert api.split is not None
    request = fill(key, api.versions[-1], COUNT, path)
    node = make_node()
    in_parts = node.ask(request)
    node.close()
    assert len(node.parts) > 1 or in_parts.error_code != ErrorCode.NONE
    parts = len(node.parts)
    monkeypatch.setattr(dispatch, "DIVIDED_BYTES", 1 << 40)
    node = make_node()
    whole = node.ask(request)
    node.close()
    assert len(node.parts) == 0
    assert parts <= COUNT
    if key in UNORDERED:
        for response in (in_parts, whole):
            response.responses.sort(key=repr)
    assert in_parts == whole


@pytest.mark.parametrize(("key", "path"), divided(), ids=lambda value: value if isinstance(value, int) else value[0])
def test_parts_have_every_element_once(key: int, path: tuple[str, ...]) -> None:
    api = apis()[key]
    assert api.split is not None
    version = api.versions[-1]
    whole = fill(key, version, COUNT, path)
    parts = [part for part in api.split.parts(fill(key, version, COUNT, path)) if not isinstance(part, int)]
    assert all(not api.split.is_large(part.request) for part in parts)
    joined = None
    for part in parts:
        joined = join(joined, part.request, part.continued)
    assert joined == whole


def test_next_request_of_a_connection_waits_for_all_parts(make_node: Callable[[], Node]) -> None:
    node = make_node()
    response = node.ask_frame(encode_request(2, 11, 7, "c", fill(2, 11, COUNT)))
    assert isinstance(response, Pending)
    assert not response.done
    assert not response.effect_applied


def test_disconnect_stops_the_remaining_parts(make_node: Callable[[], Node]) -> None:
    node = make_node()
    response = node.ask_frame(encode_request(2, 11, 7, "c", fill(2, 11, COUNT)))
    node.wait_until(lambda: len(node.parts) > 0, "nothing is handled")
    handled = len(node.parts)
    response.cancel()
    node.pause()
    assert len(node.parts) <= handled + 1


def topics(*names: str, partitions: int = 1) -> list[k19.CreatableTopic]:
    return [k19.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]


def test_duplicates_in_distant_places_are_refused_together(make_node: Callable[[], Node]) -> None:
    node = make_node()
    names = [f"n-{number:03}" for number in range(200)]
    request = k19.CreateTopicsRequest(topics=topics(*names, names[0]), timeout_ms=60_000)
    errors = {topic.name: topic.error_code for topic in node.ask(request).topics}
    assert len(node.parts) == 5
    assert errors.pop(names[0]) == ErrorCode.INVALID_REQUEST
    assert set(errors.values()) == {ErrorCode.NONE}
    node.close()


def test_limit_of_the_whole_request_is_checked_before_its_parts(make_node: Callable[[], Node]) -> None:
    node = make_node()
    names = [f"n-{number:03}" for number in range(200)]
    request = k19.CreateTopicsRequest(topics=topics(*names, partitions=51), timeout_ms=60_000)
    response = node.ask(request)
    assert [topic.name for topic in response.topics] == names
    assert {topic.error_code for topic in response.topics} == {ErrorCode.POLICY_VIOLATION}
    assert list(node.runtime.image.topic_ids) == ["t"]
    node.close()


def test_partitions_of_one_topic_are_one_entry_of_the_response(make_node: Callable[[], Node]) -> None:
    node = make_node()
    partitions = [k02.ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(COUNT)]
    request = k02.ListOffsetsRequest(replica_id=-1, topics=[k02.ListOffsetsTopic(name="t", partitions=partitions)])
    response = node.ask(request)
    assert len(node.parts) == COUNT / 100
    assert [topic.name for topic in response.topics] == ["t"]
    assert [partition.partition_index for partition in response.topics[0].partitions] == list(range(COUNT))
    node.close()


def test_error_of_a_whole_group_is_repeated_once(make_node: Callable[[], Node]) -> None:
    node = make_node()
    groups = [k09.OffsetFetchRequestGroup(group_id=f"g{number}", topics=None) for number in range(COUNT)]
    response = node.ask(k09.OffsetFetchRequest(groups=groups))
    assert [group.group_id for group in response.groups] == [group.group_id for group in groups]
    node.close()


def test_fetch_of_many_partitions_is_read_in_pieces(
    make_node: Callable[[], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node()
    partitions = [
        fetch_messages.FetchPartition(partition=index, partition_max_bytes=1000)
        for index in range(k01_fetch.MANY_PARTITIONS * 5)
    ]
    topic = fetch_messages.FetchTopic(topic="t", partitions=partitions)
    request = fetch_messages.FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[topic])
    response = node.ask_frame(encode_request(1, 12, 7, "c", request))
    assert isinstance(response, Pending)
    assert not response.done
    in_pieces = node._answer(response, fetch_messages.FetchResponse, 1, 12)
    monkeypatch.setattr(k01_fetch, "MANY_PARTITIONS", 1 << 20)
    monkeypatch.setattr(k01_fetch, "MANY_PARTITIONS_BYTES", 1 << 20)
    whole = node.quietly(request, fetch_messages.FetchResponse, version=12)
    in_pieces.session_id = whole.session_id
    assert in_pieces == whole
    node.close()


def test_client_transaction_with_many_partitions_is_checked_in_pieces(make_node: Callable[[], Node]) -> None:
    node = make_node()
    count = 10 * k24_add_partitions_to_txn.MANY_PARTITIONS
    topic = k24.AddPartitionsToTxnTopic(name="t", partitions=list(range(count)))
    request = k24.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x", v3_and_below_producer_id=1, v3_and_below_topics=[topic]
    )
    response = node.ask_frame(encode_request(24, 3, 7, "c", request))
    assert isinstance(response, Pending)
    assert not response.done
    results = node._answer(response, k24.AddPartitionsToTxnResponse, 24, 3).results_by_topic_v3_and_below[0]
    codes = [result.partition_error_code for result in results.results_by_partition]
    assert codes[:2] == [ErrorCode.OPERATION_NOT_ATTEMPTED] * 2
    assert set(codes[2:]) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(codes) == count
    node.close()


def test_description_of_many_topics_takes_turns(make_node: Callable[[], Node]) -> None:
    node = make_node()
    count = 2 * k75_describe_topic_partitions.MANY_TOPICS
    named = [k75.TopicRequest(name=f"n-{number:05}") for number in range(count)]
    request = k75.DescribeTopicPartitionsRequest(topics=named, response_partition_limit=2000)
    response = node.ask_frame(encode_request(75, 0, 7, "c", request))
    assert isinstance(response, Pending)
    assert not response.done
    described = node._answer(response, k75.DescribeTopicPartitionsResponse, 75, 0)
    assert [topic.name for topic in described.topics] == [topic.name for topic in named]
    node.close()


def test_split_counts_nested_elements() -> None:
    split = divide_by("topics.partitions", size=10)
    small = k02.ListOffsetsRequest(topics=[k02.ListOffsetsTopic(partitions=[k02.ListOffsetsPartition()] * 10)])
    large = k02.ListOffsetsRequest(topics=[k02.ListOffsetsTopic(partitions=[k02.ListOffsetsPartition()] * 11)])
    empty_topics = k02.ListOffsetsRequest(topics=[k02.ListOffsetsTopic()] * 11)
    assert [split.is_large(request) for request in (small, large, empty_topics)] == [False, True, True]
