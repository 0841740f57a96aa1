"""ShareFetch and ShareAcknowledge against a broker in virtual time: what is delivered, when, and which errors come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.broker.session import Session
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.k49_alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    OpData,
    RequestEntryData,
)
from ottla.protocol.messages.k78_share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
)
from ottla.protocol.messages.k79_share_acknowledge import (
    AcknowledgementBatch as Acknowledged,
)
from ottla.protocol.messages.k79_share_acknowledge import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from ottla.protocol.schema import Uuid
from ottla.records.builder import build_batch
from ottla.records.control import ControlType
from ottla.records.iterate import Record, iter_all_records
from ottla.shares.environment import SharePartitionKey
from ottla.shares.partition import ACCEPT, REJECT, RELEASE, RENEW
from ottla.shares.sessions import TopicIdPartition
from tests.conversations.local_talk import LocalTalk
from tests.shares.sharing import DictionaryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ottla.broker.broker import Broker

GROUP, ANN, BOB = "g", "ann", "bob"
GROUP_RESOURCE = 32


class Talk(LocalTalk):
    """A broker with a topic `t` of two partitions, which a group shares from their beginnings."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(settings or {})
        self.create("t", 2)
        topic = self.cluster.image.topic("t")
        assert topic is not None
        self.topic_id = topic.id
        self.share(0)
        self.share(1)

    @property
    def node(self) -> Broker:
        return self.cluster.nodes[1]

    def session_of_its_own(self, number: int) -> None:
        """Go on as another connection."""
        self._session = Session(number, "PLAINTEXT", "127.0.0.1", 40_000 + number)

    def share(self, partition: int, start: int = 0, epoch: int = 0) -> None:
        """Let a group begin at an offset of a partition."""
        begun = self.node.share_states.initialize(SharePartitionKey(GROUP, self.topic_id, partition), epoch, start)
        self.wait_until(lambda: begun.done, "not initialized")
        assert begun.response is ErrorCode.NONE

    def configure(self, **configs: str) -> None:
        """Set configs of the group."""
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=GROUP_RESOURCE,
                    resource_name=GROUP,
                    configs=[
                        AlterableConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()
                    ],
                )
            ]
        )
        answer = self.quietly(request, IncrementalAlterConfigsResponse)
        assert [each.error_code for each in answer.responses] == [0]

    def write(self, *values: bytes, partition: int = 0, producer: int = -1, sequence: int = -1) -> int:
        """Append one batch, of a transaction if a producer is named; its size."""
        batch = build_batch(
            [Record(index, self.world.clock.now_ms(), None, value) for index, value in enumerate(values)],
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
            transactional=producer >= 0,
        )
        self.cluster.partitions["t", partition].append(batch)
        return len(batch)

    def end(self, producer: int, *, commit: bool) -> None:
        """End a transaction in partition 0."""
        partition = self.cluster.partitions["t", 0]
        partition.log.append_marker(
            ControlType.COMMIT if commit else ControlType.ABORT,
            partition.state.leader_epoch,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
        )

    def fetching(
        self,
        member: str | None,
        epoch: int,
        partitions: tuple[int, ...] = (),
        *,
        acks: Mapping[int, list[tuple[int, int, list[int]]]] | None = None,
        forgotten: tuple[int, ...] = (),
        wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1_000_000,
        max_records: int = 500,
        batch_size: int = 500,
        mode: int = 0,
        renew: bool = False,
        group: str | None = GROUP,
        topic_id: Uuid | None = None,
        version: int = 2,
    ) -> Callable[[], ShareFetchResponse]:
        """Begin a share fetch."""
        acks = acks or {}
        named = [*partitions, *(each for each in acks if each not in partitions)]
        request = ShareFetchRequest(
            group_id=group,
            member_id=member,
            share_session_epoch=epoch,
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_records=max_records,
            batch_size=batch_size,
            share_acquire_mode=mode,
            is_renew_ack=renew,
            topics=[
                FetchTopic(
                    topic_id=topic_id or self.topic_id,
                    partitions=[
                        FetchPartition(
                            partition_index=each,
                            acknowledgement_batches=[
                                AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
                                for first, last, types in acks.get(each, [])
                            ],
                        )
                        for each in named
                    ],
                )
            ]
            if named
            else [],
            forgotten_topics_data=[ForgottenTopic(topic_id=self.topic_id, partitions=list(forgotten))]
            if forgotten
            else [],
        )
        return self.start(request, ShareFetchResponse, version)

    def fetch(self, member: str | None, epoch: int, partitions: tuple[int, ...] = (), **options: object) -> ShareFetchResponse:  # fmt: skip  # noqa: E501
        """A share fetch and its answer."""
        return self.fetching(member, epoch, partitions, **options)()  # type: ignore[arg-type]

    def acknowledging(
        self,
        member: str | None,
        epoch: int,
        acks: Mapping[int, list[tuple[int, int, list[int]]]],
        *,
        renew: bool = False,
        group: str | None = GROUP,
        topic_id: Uuid | None = None,
        version: int = 2,
    ) -> Callable[[], ShareAcknowledgeResponse]:
        """Begin an acknowledgement."""
        request = ShareAcknowledgeRequest(
            group_id=group,
            member_id=member,
            share_session_epoch=epoch,
            is_renew_ack=renew,
            topics=[
                AcknowledgeTopic(
                    topic_id=topic_id or self.topic_id,
                    partitions=[
                        AcknowledgePartition(
                            partition_index=index,
                            acknowledgement_batches=[
                                Acknowledged(first_offset=first, last_offset=last, acknowledge_types=types)
                                for first, last, types in batches
                            ],
                        )
                        for index, batches in acks.items()
                    ],
                )
            ],
        )
        return self.start(request, ShareAcknowledgeResponse, version)

    def acknowledge(self, member: str | None, epoch: int, acks: Mapping[int, list[tuple[int, int, list[int]]]], **options: object) -> list[ErrorCode]:  # fmt: skip  # noqa: E501
        """The codes of an acknowledgement: the whole request's if it has one, else each partition's."""
        answer = self.acknowledging(member, epoch, acks, **options)()  # type: ignore[arg-type]
        if answer.error_code:
            return [ErrorCode(answer.error_code)]
        return [ErrorCode(each.error_code) for topic in answer.responses for each in topic.partitions]


def acquired(answer: ShareFetchResponse) -> dict[int, list[tuple[int, int, int]]]:
    """What an answer gives, by partition: first and last offset, and the count of deliveries."""
    assert answer.error_code == 0
    return {
        data.partition_index: [(r.first_offset, r.last_offset, r.delivery_count) for r in data.acquired_records]
        for data in parts(answer)
        if data.acquired_records
    }


def parts(answer: ShareFetchResponse) -> list[PartitionData]:
    return [data for topic in answer.responses for data in topic.partitions]


def values(data: PartitionData) -> list[bytes | None]:
    return [record.value for _, record in iter_all_records(bytes(data.records or b""))]


@pytest.fixture
def talk() -> Iterator[Talk]:
    made = Talk()
    yield made
    made.close()


def test_member_acquires_and_accepts_records(talk: Talk) -> None:
    talk.write(b"a", b"b")
    talk.write(b"c")
    talk.write(b"d", partition=1)
    answer = talk.fetch(ANN, 0, (0, 1))
    assert acquired(answer) == {0: [(0, 2, 1)], 1: [(0, 0, 1)]}
    assert answer.acquisition_lock_timeout_ms == 30_000
    assert values(parts(answer)[0]) == [b"a", b"b", b"c"]
    assert talk.fetch(BOB, 0, (0, 1), wait_ms=0).error_code == 0
    assert acquired(talk.fetch(BOB, 1)) == {}
    assert talk.acknowledge(ANN, 1, {0: [(0, 2, [ACCEPT])], 1: [(0, 0, [ACCEPT])]}) == [ErrorCode.NONE] * 2
    assert talk.acknowledge(ANN, 2, {0: [(0, 2, [ACCEPT])]}) == [ErrorCode.NONE]  # below the start, as in Kafka


def test_batches_without_acquired_records_are_not_sent(talk: Talk) -> None:
    for value in (b"a", b"b", b"c", b"d"):
        talk.write(value)
    first = talk.fetch(ANN, 0, (0,), max_records=1)
    assert values(parts(first)[0]) == [b"a"]
    second = talk.fetch(BOB, 0, (0,), max_records=2)
    assert acquired(second) == {0: [(1, 2, 1)]}
    assert values(parts(second)[0]) == [b"b", b"c"]


def test_fetch_carries_acknowledgements(talk: Talk) -> None:
    talk.write(b"a")
    talk.write(b"b")
    talk.fetch(ANN, 0, (0,), max_records=1)
    answer = talk.fetch(ANN, 1, acks={0: [(0, 0, [RELEASE])]}, max_records=1)
    assert acquired(answer) == {0: [(0, 0, 2)]}
    assert parts(answer)[0].acknowledge_error_code == 0
    wrong = talk.fetch(ANN, 2, acks={0: [(1, 1, [ACCEPT])], 1: [(0, 0, [ACCEPT])]}, max_records=1)
    assert [(each.partition_index, ErrorCode(each.acknowledge_error_code)) for each in parts(wrong)] == [
        (0, ErrorCode.INVALID_REQUEST),
        (1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),  # nobody has fetched from it
    ]


def test_final_fetch_acknowledges_and_releases(talk: Talk) -> None:
    talk.write(b"a")
    talk.write(b"b")
    talk.fetch(ANN, 0, (0,))
    answer = talk.fetch(ANN, -1, acks={0: [(0, 0, [ACCEPT])]})
    assert acquired(answer) == {}
    assert [each.acknowledge_error_code for each in parts(answer)] == [0]
    assert acquired(talk.fetch(BOB, 0, (0,))) == {0: [(1, 1, 2)]}
    assert talk.fetch(ANN, 1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_final_acknowledge_releases_records(talk: Talk) -> None:
    talk.write(b"a")
    talk.write(b"b")
    talk.fetch(ANN, 0, (0,))
    assert talk.acknowledge(ANN, -1, {0: [(0, 0, [REJECT])]}) == [ErrorCode.NONE]
    assert acquired(talk.fetch(BOB, 0, (0,))) == {0: [(1, 1, 2)]}


def test_session_errors_equal_kafkas(talk: Talk) -> None:
    acks = {0: [(0, 0, [ACCEPT])]}
    assert talk.fetch(ANN, 5).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert talk.fetch(ANN, -1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert talk.fetch(ANN, 0, (0,), acks=acks).error_code == ErrorCode.INVALID_REQUEST
    assert talk.acknowledge(ANN, 0, acks) == [ErrorCode.INVALID_SHARE_SESSION_EPOCH]
    assert talk.acknowledge(ANN, 1, acks) == [ErrorCode.SHARE_SESSION_NOT_FOUND]
    assert talk.fetch(ANN, 0, (0,)).error_code == 0
    assert talk.fetch(ANN, 3).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert talk.acknowledge(ANN, 3, acks) == [ErrorCode.INVALID_SHARE_SESSION_EPOCH]
    assert talk.fetch("", 0, (0,)).error_code == ErrorCode.INVALID_REQUEST
    assert talk.fetch(None, 0, (0,)).error_code == ErrorCode.INVALID_REQUEST
    assert talk.fetch("m" * 37, 0, (0,)).error_code == ErrorCode.INVALID_REQUEST
    assert talk.fetch(ANN, 0, (0,), group=None).error_code == ErrorCode.INVALID_REQUEST
    assert talk.acknowledge(ANN, 1, acks, group=None) == [ErrorCode.INVALID_REQUEST]


def test_session_limit_error_is_delayed() -> None:
    talk = Talk({"group.share.max.share.sessions": "1"})
    talk.fetch(ANN, 0, (0,))
    begun = talk.world.clock.monotonic()
    assert talk.fetch(BOB, 0, (0,), wait_ms=500).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert talk.world.clock.monotonic() - begun >= 0.5
    talk.close()


def test_unknown_partitions_are_errors(talk: Talk) -> None:
    nowhere = Uuid(b"\7" * 16)
    answer = talk.fetch(ANN, 0, (0,), topic_id=nowhere)
    assert [each.error_code for each in parts(answer)] == [ErrorCode.UNKNOWN_TOPIC_ID]
    answer = talk.fetch(ANN, 0, (9,))
    assert [each.error_code for each in parts(answer)] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert talk.acknowledge(ANN, 1, {0: [(0, 0, [ACCEPT])]}, topic_id=nowhere) == [ErrorCode.UNKNOWN_TOPIC_ID]
    # Nobody has fetched from these.
    assert talk.acknowledge(ANN, 2, {0: [(0, 0, [ACCEPT])]}) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert talk.acknowledge(ANN, 3, {9: [(0, 0, [ACCEPT])]}) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_uninitialized_share_partition_is_refused(talk: Talk) -> None:
    answer = talk.fetch(ANN, 0, (0,), group="other")
    assert [each.error_code for each in parts(answer)] == [ErrorCode.UNKNOWN_SERVER_ERROR]  # Kafka's words for it


@pytest.mark.parametrize(
    ("batches", "renew", "version"),
    [
        ([(3, 2, [ACCEPT])], False, 2),
        ([(2, 3, [ACCEPT]), (1, 1, [ACCEPT])], False, 2),
        ([(0, 0, [])], False, 2),
        ([(0, 2, [ACCEPT, ACCEPT])], False, 2),
        ([(0, 0, [5])], False, 2),
        ([(0, 0, [-1])], False, 2),
        ([(0, 0, [RENEW])], False, 2),
        ([(0, 0, [RENEW])], False, 1),
    ],
)
def test_malformed_acknowledgements_are_invalid_request(
    talk: Talk, batches: list[tuple[int, int, list[int]]], renew: bool, version: int
) -> None:
    talk.write(b"a")
    talk.fetch(ANN, 0, (0,))
    assert talk.acknowledge(ANN, 1, {0: batches}, renew=renew, version=version) == [ErrorCode.INVALID_REQUEST]
    assert talk.acknowledge(ANN, 2, {0: [(0, 0, [ACCEPT])]}) == [ErrorCode.NONE]


def test_acquisition_locks_are_renewed_by_both_apis(talk: Talk) -> None:
    talk.write(b"a")
    talk.fetch(ANN, 0, (0,))
    talk.world.clock.advance(20)
    assert talk.acknowledge(ANN, 1, {0: [(0, 0, [RENEW])]}, renew=True) == [ErrorCode.NONE]
    talk.world.clock.advance(20)
    assert talk.fetch(ANN, 2, acks={0: [(0, 0, [RENEW])]}, renew=True).error_code == ErrorCode.INVALID_REQUEST
    renewed = talk.fetch(
        ANN, 2, acks={0: [(0, 0, [RENEW])]}, renew=True, max_bytes=0, min_bytes=0, max_records=0, wait_ms=0
    )
    assert renewed.error_code == 0
    assert [each.acknowledge_error_code for each in parts(renewed)] == [0]
    talk.world.clock.advance(20)
    assert talk.acknowledge(ANN, 3, {0: [(0, 0, [ACCEPT])]}) == [ErrorCode.NONE]


def test_fetch_waits_for_records(talk: Talk) -> None:
    waiting = talk.fetching(ANN, 0, (0,), wait_ms=60_000)
    talk.pause()
    talk.write(b"a")
    begun = talk.world.clock.monotonic()
    assert acquired(waiting()) == {0: [(0, 0, 1)]}
    assert talk.world.clock.monotonic() - begun < 1
    assert not talk.cluster.partitions["t", 0].delayed
    assert not talk.node.share_partitions.waits


def test_fetch_waits_for_min_bytes_up_to_max_wait(talk: Talk) -> None:
    size = talk.write(b"a")
    waiting = talk.fetching(ANN, 0, (0, 1), wait_ms=1_000, min_bytes=2 * size)
    begun = talk.world.clock.monotonic()
    assert acquired(waiting()) == {0: [(0, 0, 1)]}
    assert talk.world.clock.monotonic() - begun >= 1
    waiting = talk.fetching(BOB, 0, (0, 1), wait_ms=60_000, min_bytes=2 * size)
    talk.write(b"b", partition=0)
    talk.pause()
    talk.write(b"c", partition=1)
    assert acquired(waiting()) == {0: [(1, 1, 1)], 1: [(0, 0, 1)]}


def test_waiting_fetch_acquires_released_records(talk: Talk) -> None:
    talk.write(b"a")
    talk.fetch(ANN, 0, (0,))
    waiting = talk.fetching(BOB, 0, (0,), wait_ms=60_000)
    talk.pause()
    assert talk.acknowledge(ANN, 1, {0: [(0, 0, [RELEASE])]}) == [ErrorCode.NONE]
    assert acquired(waiting()) == {0: [(0, 0, 2)]}


def test_waiting_fetch_acquires_records_of_expired_lock(talk: Talk) -> None:
    talk.write(b"a")
    talk.fetch(ANN, 0, (0,))
    waiting = talk.fetching(BOB, 0, (0,), wait_ms=60_000)
    begun = talk.world.clock.monotonic()
    assert acquired(waiting()) == {0: [(0, 0, 2)]}
    assert 29 < talk.world.clock.monotonic() - begun < 31
    assert talk.acknowledge(ANN, 1, {0: [(0, 0, [ACCEPT])]}) == [ErrorCode.INVALID_RECORD_STATE]


def test_closed_connection_releases_records(talk: Talk) -> None:
    talk.write(b"a")
    talk.fetch(ANN, 0, (0,))
    talk.session_of_its_own(2)
    waiting = talk.fetching(BOB, 0, (0,), wait_ms=60_000)
    talk.pause()
    talk.node.share_partitions.disconnected(1)
    assert acquired(waiting()) == {0: [(0, 0, 2)]}
    talk.node.share_partitions.disconnected(2)
    assert len(talk.node.share_partitions) == 0


def test_read_committed_fetch_ignores_ongoing_and_aborted(talk: Talk) -> None:
    talk.configure(share_isolation_level="read_committed")
    talk.write(b"lost", b"lost too", producer=7, sequence=0)
    waiting = talk.fetching(ANN, 0, (0,), wait_ms=60_000)
    talk.pause()
    talk.write(b"after")
    assert talk.node.share_partitions.waits
    talk.end(7, commit=False)
    answer = waiting()
    # The marker is in the range; a client acknowledges it as a gap.
    assert acquired(answer) == {0: [(2, 3, 1)]}
    assert talk.acknowledge(ANN, 1, {0: [(2, 3, [ACCEPT, 0])]}) == [ErrorCode.NONE]
    shared = talk.node.share_partitions.get(GROUP, TopicIdPartition(talk.topic_id, 0))
    assert shared is not None
    assert shared.start_offset == 4


def test_read_uncommitted_fetch_returns_ongoing_records(talk: Talk) -> None:
    talk.write(b"open", producer=7, sequence=0)
    assert acquired(talk.fetch(ANN, 0, (0,))) == {0: [(0, 0, 1)]}


def test_strict_record_limit_is_exact(talk: Talk) -> None:
    talk.write(*[b"x"] * 10)
    assert acquired(talk.fetch(ANN, 0, (0,), max_records=3, mode=1)) == {0: [(0, 2, 1)]}
    assert acquired(talk.fetch(BOB, 0, (0,), max_records=30, mode=1)) == {0: [(3, 9, 1)]}


def test_record_limit_covers_all_partitions(talk: Talk) -> None:
    for partition in (0, 1):
        talk.write(b"x", partition=partition)
    assert acquired(talk.fetch(ANN, 0, (0, 1), max_records=1)) == {0: [(0, 0, 1)]}
    assert acquired(talk.fetch(ANN, 1, max_records=1)) == {1: [(0, 0, 1)]}


def test_acknowledge_response_waits_for_persistence(talk: Talk) -> None:
    store = DictionaryStore()
    key = SharePartitionKey(GROUP, talk.topic_id, 0)
    store.initialize(key, 0, 0)
    talk.node.share_partitions.store = store
    talk.write(b"a")
    talk.fetch(ANN, 0, (0,))
    store.holding = True
    begun = talk.acknowledging(ANN, 1, {0: [(0, 0, [ACCEPT])]})
    riding = talk.fetching(ANN, 2, acks={0: [(0, 0, [ACCEPT])]})
    answer = riding()  # another one may be answered at once: its records are in nobody's hands
    assert [each.acknowledge_error_code for each in parts(answer)] == [ErrorCode.INVALID_RECORD_STATE]
    assert store.kept[key].records == {}
    store.let_go()
    assert begun().responses[0].partitions[0].error_code == 0
    assert store.kept[key].records == {0: (2, 1)}


def test_fenced_state_epoch_drops_share_partition(talk: Talk) -> None:
    talk.write(b"a")
    talk.write(b"b")
    talk.fetch(ANN, 0, (0,))
    talk.share(0, start=1, epoch=1)  # the offsets of the group are altered
    assert talk.acknowledge(ANN, 1, {0: [(0, 0, [ACCEPT])]}) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert acquired(talk.fetch(ANN, 2)) == {0: [(1, 1, 1)]}


def test_acknowledged_records_survive_restart(talk: Talk) -> None:
    for value in (b"a", b"b", b"c", b"d"):
        talk.write(value)
    talk.fetch(ANN, 0, (0,))
    assert talk.acknowledge(ANN, 1, {0: [(0, 0, [ACCEPT]), (2, 2, [ACCEPT]), (3, 3, [RELEASE])]}) == [ErrorCode.NONE]
    talk.restart()
    assert acquired(talk.fetch(BOB, 0, (0,))) == {0: [(1, 1, 1), (3, 3, 2)]}


def test_deleted_topic_drops_share_partitions(talk: Talk) -> None:
    talk.write(b"a")
    talk.fetch(ANN, 0, (0,))
    waiting = talk.fetching(ANN, 1, wait_ms=60_000)
    talk.pause()
    topic = talk.cluster.image.topic("t")
    assert topic is not None
    talk.quietly(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1_000), DeleteTopicsResponse)
    assert waiting().error_code == 0
    assert len(talk.node.share_partitions) == 0
    answer = talk.fetch(ANN, 2)
    assert [each.error_code for each in parts(answer)] == [ErrorCode.UNKNOWN_TOPIC_ID]


@pytest.mark.parametrize(
    ("reset", "expected"), [("earliest", (0, 2, 1)), ("latest", None), ("by_duration:PT1M", (1, 2, 1))]
)
def test_auto_offset_reset_sets_start_offset(talk: Talk, reset: str, expected: tuple[int, int, int] | None) -> None:
    talk.configure(share_auto_offset_reset=reset)
    talk.share(0, start=-1, epoch=1)
    talk.write(b"old")
    talk.world.clock.advance(600)
    talk.write(b"new")
    talk.write(b"newer")
    assert acquired(talk.fetch(ANN, 0, (0,))).get(0) == (None if expected is None else [expected])
    talk.write(b"newest")
    assert (0 in acquired(talk.fetch(ANN, 1))) is True


def test_fetch_resumes_at_new_log_start_offset(talk: Talk) -> None:
    for value in (b"a", b"b", b"c"):
        talk.write(value)
    talk.fetch(ANN, 0, (0,), max_records=1)
    talk.acknowledge(ANN, 1, {0: [(0, 0, [RELEASE])]})
    talk.cluster.partitions["t", 0].log.advance_log_start(2)
    answer = talk.fetch(ANN, 2, wait_ms=60_000)
    assert acquired(answer) == {}
    assert acquired(talk.fetch(ANN, 3)) == {0: [(2, 2, 1)]}


def test_incremental_response_includes_only_changes(talk: Talk) -> None:
    talk.write(b"a")
    assert [each.partition_index for each in parts(talk.fetch(ANN, 0, (0, 1)))] == [0, 1]
    assert parts(talk.fetch(ANN, 1)) == []
    talk.write(b"b", partition=1)
    assert [each.partition_index for each in parts(talk.fetch(ANN, 2, forgotten=(0,)))] == [1]
    talk.write(b"c", partition=0)
    assert parts(talk.fetch(ANN, 3)) == []


def test_throttled_member_gets_only_acknowledge_results(talk: Talk) -> None:
    talk.write(b"a")
    talk.fetch(ANN, 0, (0,))
    talk.write(b"x" * 5_000)
    quota = AlterClientQuotasRequest(
        entries=[
            RequestEntryData(
                entity=[EntityData(entity_type="client-id", entity_name=None)],
                ops=[OpData(key="consumer_byte_rate", value=10.0)],
            )
        ]
    )
    assert talk.quietly(quota, AlterClientQuotasResponse).entries[0].error_code == 0
    answer = talk.fetch(ANN, 1, acks={0: [(0, 0, [ACCEPT])]})
    assert answer.throttle_time_ms > 0
    assert acquired(answer) == {}
    assert [(bytes(each.records or b""), each.acknowledge_error_code) for each in parts(answer)] == [(b"", 0)]


def test_deleted_state_drops_share_partitions(talk: Talk) -> None:
    talk.write(b"a")
    talk.fetch(ANN, 0, (0,))
    deleted = talk.node.share_states.delete(SharePartitionKey(GROUP, talk.topic_id, 0))
    talk.wait_until(lambda: deleted.done, "not deleted")
    assert talk.acknowledge(ANN, 1, {0: [(0, 0, [ACCEPT])]}) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    talk.share(0)
    assert acquired(talk.fetch(ANN, 2)) == {0: [(0, 0, 1)]}
