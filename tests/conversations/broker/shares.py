"""Sharing: ShareFetch and ShareAcknowledge, what members get of a partition, and what they are refused."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from ottla.protocol.messages import k78_share_fetch as k78
from ottla.protocol.messages import k79_share_acknowledge as k79
from ottla.protocol.messages import k87_read_share_group_state_summary as k87
from ottla.protocol.messages.k00_produce import ProduceResponse
from ottla.protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.k26_end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.k83_initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    InitializeStateData,
    PartitionData,
)
from ottla.protocol.schema import Uuid

from . import script
from .produce import batch, produce

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.conversations.side_by_side import Talk

NOBODY = Uuid(bytes(range(16)))
GROUP = 32
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
UNORDERED = ("responses", "partitions")
SOON = 60_000  # how long one waits for what is there: not that long


class Sharing:
    """A topic, a group that shares it from the beginning, and its members."""

    def __init__(self, talk: Talk, partitions: int = 1, group: str = "") -> None:
        self.talk = talk
        self.topic_id = talk.create("t", partitions)
        self.group = group or f"group of {self.topic_id}"
        self.first = 0  # where the offsets that a script names begin
        self._partitions = range(partitions)
        self.find_coordinator()
        self.initialize(*range(partitions))

    def find_coordinator(self) -> None:
        """Have the topic of share state made."""
        key = f"{self.group}:{self.topic_id}:0"
        request = FindCoordinatorRequest(key_type=2, coordinator_keys=[key])
        self.talk.wait_until(
            lambda: self.talk.quietly(request, FindCoordinatorResponse).coordinators[0].error_code == 0,
            "there is no share coordinator",
        )

    def initialize(self, *partitions: int, epoch: int = 0, start: int = 0) -> None:
        """Let the group begin somewhere."""
        request = InitializeShareGroupStateRequest(
            group_id=self.group,
            topics=[
                InitializeStateData(
                    topic_id=self.topic_id,
                    partitions=[
                        PartitionData(partition=partition, state_epoch=epoch, start_offset=start)
                        for partition in partitions
                    ],
                )
            ],
        )

        def done() -> bool:
            response = self.talk.quietly(request, InitializeShareGroupStateResponse)
            return all(partition.error_code == 0 for topic in response.results for partition in topic.partitions)

        self.talk.wait_until(done, "the state is not initialized")

    def loaded(self) -> Sharing:
        """Wait until the leader has read the state of each partition: the first record is taken, and is over then.

        A fetch that comes earlier waits for that, and is told nothing if it does not wait for long enough.
        """
        for partition in self._partitions:
            self.write(1, partition=partition)
            member = f"loader {partition}"
            self.talk.wait_until(
                lambda member=member, partition=partition: bool(  # type: ignore[misc]
                    self.given(self.ask(member, 0, partition, wait=SOON))
                ),
                "nothing is shared",
            )
            done = self._acknowledgement(member, 1, {partition: [(0, 0, [ACCEPT])]})
            response = self.talk.quietly(done, k79.ShareAcknowledgeResponse)
            assert [partition.error_code for topic in response.responses for partition in topic.partitions] == [0], (
                response
            )
            self.ask(member, -1)
        self.first = 1
        return self

    def start_offset(self) -> int:
        """Where what is shared of the first partition begins."""
        expected = k87.ReadStateSummaryData(topic_id=self.topic_id, partitions=[k87.PartitionData(partition=0)])
        request = k87.ReadShareGroupStateSummaryRequest(group_id=self.group, topics=[expected])
        response = self.talk.quietly(request, k87.ReadShareGroupStateSummaryResponse).results[0].partitions[0]
        assert response.error_code == 0, response
        return response.start_offset

    def given(self, response: k78.ShareFetchResponse) -> list[tuple[int, int, int]]:
        """What a fetch acquired: first and last offset, and how often it was delivered."""
        return [
            (
                acquired_record.first_offset - self.first,
                acquired_record.last_offset - self.first,
                acquired_record.delivery_count,
            )
            for topic in response.responses
            for data in topic.partitions
            for acquired_record in data.acquired_records
        ]

    def write(self, *sizes: int, partition: int = 0) -> None:
        """A batch of each size."""
        for size in sizes:
            response = self.talk.quietly(produce("t", batch(size), first=partition), ProduceResponse, version=12)
            assert response.responses[0].partition_responses[0].error_code == 0, response

    def configure(self, name: str, value: str) -> None:
        """Set a config of the group."""
        resource = AlterConfigsResource(
            resource_type=GROUP, resource_name=self.group, configs=[AlterableConfig(name=name, value=value)]
        )
        response = self.talk.quietly(
            IncrementalAlterConfigsRequest(resources=[resource]), IncrementalAlterConfigsResponse
        )
        assert response.responses[0].error_code == 0, response

    def begin(self, name: str, size: int) -> EndTxnRequest:
        """Write a batch in a transaction; what this returns ends it."""
        find_coordinator_request = FindCoordinatorRequest(key_type=1, coordinator_keys=[name])
        self.talk.wait_until(
            lambda: (
                self.talk.quietly(find_coordinator_request, FindCoordinatorResponse).coordinators[0].error_code == 0
            ),
            "there is no transaction coordinator",
        )
        expected = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        acquired: list[InitProducerIdResponse] = []

        def initialized() -> bool:
            acquired[:] = [self.talk.quietly(expected, InitProducerIdResponse, version=5)]
            return acquired[0].error_code == 0

        self.talk.wait_until(initialized, "there is no producer id")
        producer = acquired[0]
        data = batch(
            size,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        request = produce("t", data)
        request.transactional_id = name
        response = self.talk.quietly(request, ProduceResponse, version=12)
        assert response.responses[0].partition_responses[0].error_code == 0, response
        return EndTxnRequest(
            transactional_id=name, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch
        )

    def end(self, transaction: EndTxnRequest, *, commit: bool) -> None:
        """End a transaction, and wait for its marker."""
        end = self._end_offset()
        transaction.committed = commit
        response = self.talk.quietly(transaction, EndTxnResponse, version=5)
        assert response.error_code == 0, response
        self.talk.wait_until(lambda: self._end_offset() > end, "there is no marker")
        self.talk.wait_until(lambda: self._end_offset(committed=True) > end, "the transaction is not over")

    def _end_offset(self, *, committed: bool = False) -> int:
        expected = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
        request = ListOffsetsRequest(replica_id=-1, isolation_level=int(committed), topics=[expected])
        return self.talk.quietly(request, ListOffsetsResponse).topics[0].partitions[0].offset

    def fetch(self, label: str, *who: Any, version: int = 2, **options: Any) -> k78.ShareFetchResponse:
        """A share fetch, whose answer is written down."""
        request = self._fetch(*who, version=version, **options)
        return self.talk.ask(label, request, k78.ShareFetchResponse, version=version, unordered=UNORDERED)

    def fetch_given(self, label: str, member: str, epoch: int) -> None:
        """Fetch until something is given, and write down what: Kafka may answer before it can be given again."""
        epochs, acquired = count(epoch), []

        def come() -> bool:
            acquired[:] = self.given(self.ask(member, next(epochs), wait=100))
            return bool(acquired)

        self.talk.wait_until(come, f"{member} is given nothing")
        self.talk.note(label, acquired)

    def ask(self, *who: Any, **options: Any) -> k78.ShareFetchResponse:
        """A share fetch."""
        return self.talk.quietly(self._fetch(*who, **options), k78.ShareFetchResponse)

    def _fetch(
        self,
        member: str | None,
        epoch: int,
        *partitions: int,
        acks: Mapping[int, list[tuple[int, int, list[int]]]] | None = None,
        forgotten: tuple[int, ...] = (),
        wait: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        records: int = 500,
        batch_size: int = 500,
        mode: int = 0,
        renew: bool = False,
        version: int = 2,
        group: str | None = "",
        topic_id: Uuid | None = None,
    ) -> k78.ShareFetchRequest:
        acks = acks or {}
        named = list(dict.fromkeys([*partitions, *acks]))
        request = k78.ShareFetchRequest(
            group_id=self.group if group == "" else group,
            member_id=member,
            share_session_epoch=epoch,
            max_wait_ms=wait,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_records=records,
            batch_size=batch_size,
        )
        if version >= 2:
            request.share_acquire_mode, request.is_renew_ack = mode, renew
        if named:
            request.topics = [
                k78.FetchTopic(
                    topic_id=topic_id or self.topic_id,
                    partitions=[
                        k78.FetchPartition(
                            partition_index=partition,
                            acknowledgement_batches=[
                                k78.AcknowledgementBatch(
                                    first_offset=self.first + first,
                                    last_offset=self.first + last,
                                    acknowledge_types=types,
                                )
                                for first, last, types in acks.get(partition, [])
                            ],
                        )
                        for partition in named
                    ],
                )
            ]
        if forgotten:
            request.forgotten_topics_data = [k78.ForgottenTopic(topic_id=self.topic_id, partitions=list(forgotten))]
        return request

    def acknowledge(self, label: str, *who: Any, version: int = 2, **options: Any) -> None:
        """A share acknowledgement, whose answer is written down."""
        request = self._acknowledgement(*who, version=version, **options)
        self.talk.ask(label, request, k79.ShareAcknowledgeResponse, version=version, unordered=UNORDERED)

    def _acknowledgement(
        self,
        member: str | None,
        epoch: int,
        acks: Mapping[int, list[tuple[int, int, list[int]]]],
        *,
        renew: bool = False,
        version: int = 2,
        group: str | None = "",
        topic_id: Uuid | None = None,
    ) -> k79.ShareAcknowledgeRequest:
        request = k79.ShareAcknowledgeRequest(
            group_id=self.group if group == "" else group,
            member_id=member,
            share_session_epoch=epoch,
            topics=[
                k79.AcknowledgeTopic(
                    topic_id=topic_id or self.topic_id,
                    partitions=[
                        k79.AcknowledgePartition(
                            partition_index=index,
                            acknowledgement_batches=[
                                k79.AcknowledgementBatch(
                                    first_offset=self.first + first,
                                    last_offset=self.first + last,
                                    acknowledge_types=types,
                                )
                                for first, last, types in batches
                            ],
                        )
                        for index, batches in acks.items()
                    ],
                )
            ],
        )
        if version >= 2:
            request.is_renew_ack = renew
        return request


@script()
def share_sessions(talk: Talk) -> None:
    shared = Sharing(talk, 2).loaded()
    one = {0: [(0, 0, [ACCEPT])]}
    shared.fetch("no session", "m", 5)
    shared.fetch("nothing to end", "m", -1)
    shared.acknowledge("opens no session", "m", 0, one)
    shared.acknowledge("no session to acknowledge in", "m", 1, one)
    shared.acknowledge("no session to acknowledge the end of", "m", -1, one)
    shared.fetch("acknowledges at first", "m", 0, 0, acks=one)
    shared.fetch("no member", "", 0, 0)
    shared.fetch("null member", None, 0, 0)
    shared.fetch("long member", "m" * 37, 0, 0)
    shared.fetch("longest member", "m" * 36, 0, 0, 1, wait=500)
    shared.fetch("null group", "m", 0, 0, group=None)
    shared.acknowledge("no member acknowledges", "", 1, one)
    shared.acknowledge("null group acknowledges", "m", 1, one, group=None)
    shared.write(1)
    shared.write(1, partition=1)
    shared.fetch("first", "m", 0, 0, 1, wait=SOON)
    shared.fetch("wrong epoch", "m", 3)
    shared.fetch("second", "m", 1, wait=100)
    shared.fetch("second again", "m", 1)
    shared.acknowledge("wrong epoch to acknowledge", "m", 1, one)
    shared.acknowledge("acknowledged", "m", 2, one)
    shared.fetch("after that", "m", 3, wait=100)
    shared.fetch("ends", "m", -1, acks={1: [(0, 0, [RELEASE])]})
    shared.fetch("ended", "m", 4)
    shared.fetch("anew", "m", 0, 1, wait=SOON)
    shared.acknowledge("ends with this", "m", -1, {1: [(0, 0, [ACCEPT])]})
    shared.acknowledge("is ended", "m", -1, {1: [(0, 0, [ACCEPT])]})


TRIPS = "Kafka trips over a topic id that it does not know and fails the whole fetch; here the partition is refused"


@script(differs=dict.fromkeys(("unknown topic", "unknown topic stays", "unknown topic on the way"), TRIPS))
def share_partitions_unknown(talk: Talk) -> None:
    shared = Sharing(talk, 2).loaded()
    shared.write(1)
    one = [(0, 0, [ACCEPT])]
    shared.fetch("unknown topic", "m", 0, 0, topic_id=NOBODY)
    shared.fetch("unknown topic stays", "m", 1)
    shared.fetch("unknown partition", "n", 0, 9)
    shared.fetch("unknown partition stays", "n", 1)
    shared.acknowledge("unknown topic acknowledged", "m", 2, {0: one}, topic_id=NOBODY)
    shared.acknowledge("unknown partition acknowledged", "m", 3, {9: one})
    shared.acknowledge("never fetched", "m", 4, {1: one})
    shared.fetch("unknown topic on the way", "m", 5, acks={0: one}, topic_id=NOBODY)
    shared.fetch("unknown partition on the way", "n", 2, acks={9: one})


@script()
def share_deliveries(talk: Talk) -> None:
    shared = Sharing(talk).loaded()
    shared.write(3, 1, 5, 2)
    for version in (1, 2):
        shared.fetch(f"one batch v{version}", f"a{version}", 0, 0, records=1, wait=SOON, version=version)
    shared.fetch("the rest", "b", 0, 0, wait=SOON)
    shared.fetch("nothing left", "c", 0, 0, wait=100)
    shared.acknowledge("released", "b", 1, {0: [(4, 8, [RELEASE])]})
    shared.fetch("again", "c", 1, wait=SOON)
    shared.acknowledge("each its own", "c", 2, {0: [(4, 8, [ACCEPT, RELEASE, REJECT, GAP, RELEASE])]})
    shared.fetch("what is left of it", "a2", 1, wait=SOON)
    # Whether what is released on the way is given by the same answer, is a matter of time.
    shared.fetch("released on the way", "a2", 2, acks={0: [(5, 5, [RELEASE])]}, records=0)
    shared.fetch("what was released", "a2", 3, wait=SOON)
    shared.fetch("gives all back", "a2", -1)
    shared.fetch_given("and once more", "c", 3)
    shared.write(4, 4, 4)
    shared.fetch("in portions", "d", 0, 0, batch_size=4, wait=SOON)
    shared.write(6)
    shared.fetch("strictly", "e", 0, 0, records=2, mode=1, wait=SOON)
    shared.fetch("strictly the next", "e", 1, records=3, mode=1, wait=SOON)
    shared.fetch("strictly the last", "e", 2, records=3, mode=1, wait=SOON)
    shared.fetch("no records wanted", "e", 3, records=0, wait=500)
    shared.fetch("no bytes wanted", "e", 4, max_bytes=0, wait=500)


@script()
def share_until_given_up(talk: Talk) -> None:
    shared = Sharing(talk).loaded()
    shared.write(16)
    epoch = 0
    for number in range(20):
        wait = SOON if shared.start_offset() < shared.first + 16 else 100
        response = shared.fetch(f"delivery {number}", "m", epoch, *((0,) if epoch == 0 else ()), wait=wait)
        held = [(first, last, [RELEASE]) for first, last, _ in shared.given(response)]
        shared.acknowledge(f"released {number}", "m", epoch + 1, {0: held})
        epoch += 2


@script()
def share_acknowledgements_refused(talk: Talk) -> None:
    shared = Sharing(talk).loaded()
    shared.write(5, 5, 5)
    shared.fetch("a", "a", 0, 0, records=1, wait=SOON)
    shared.fetch("b", "b", 0, 0, records=1, wait=SOON)
    table: dict[str, list[tuple[int, int, list[int]]]] = {
        "of another": [(5, 9, [ACCEPT])],
        "of another, in part": [(6, 7, [ACCEPT])],
        "mine and another's": [(0, 9, [ACCEPT])],
        "mine, then another's": [(0, 4, [ACCEPT]), (5, 9, [ACCEPT])],
        "never acquired": [(10, 14, [ACCEPT])],
        "partly never acquired": [(5, 12, [ACCEPT])],
        "beyond the end": [(90, 91, [ACCEPT])],
        "backwards": [(4, 0, [ACCEPT])],
        "out of order": [(3, 4, [ACCEPT]), (0, 1, [ACCEPT])],
        "no types": [(0, 4, [])],
        "too few types": [(0, 4, [ACCEPT, ACCEPT])],
        "too many types": [(0, 1, [ACCEPT] * 3)],
        "an unknown type": [(0, 4, [5])],
        "a negative type": [(0, 4, [-1])],
        "renewed without saying so": [(0, 4, [RENEW])],
    }
    epoch = 1
    for label, batches in table.items():
        shared.acknowledge(label, "a", epoch, {0: batches})
        shared.fetch(f"{label}, on the way", "a", epoch + 1, acks={0: batches}, records=0)
        epoch += 2
    shared.acknowledge("nothing at all", "a", epoch, {0: []})
    shared.acknowledge("renewed in v1", "a", epoch + 1, {0: [(0, 4, [RENEW])]}, version=1)
    shared.acknowledge("renewed", "a", epoch + 2, {0: [(0, 4, [RENEW])]}, renew=True)
    shared.acknowledge("some renewed, some not", "a", epoch + 3, {0: [(0, 1, [RENEW, ACCEPT])]}, renew=True)
    shared.fetch("renewed with wishes", "a", epoch + 4, acks={0: [(0, 0, [RENEW])]}, renew=True, wait=1)
    shared.fetch(
        "renewed on the way",
        "a",
        epoch + 4,
        acks={0: [(0, 0, [RENEW])]},
        renew=True,
        max_bytes=0,
        min_bytes=0,
        records=0,
    )
    shared.acknowledge("accepted", "a", epoch + 5, {0: [(2, 4, [ACCEPT])]})
    shared.acknowledge("accepted twice", "a", epoch + 6, {0: [(2, 4, [ACCEPT])]})
    shared.acknowledge("the first too", "a", epoch + 7, {0: [(0, 0, [ACCEPT])]})
    shared.acknowledge("what is over", "a", epoch + 8, {0: [(0, 4, [ACCEPT])]})


@script()
def share_state_fenced(talk: Talk) -> None:
    shared = Sharing(talk).loaded()
    shared.write(1, 1, 1)
    shared.fetch("all", "m", 0, 0, wait=SOON)
    shared.initialize(0, epoch=1, start=shared.first + 2)
    shared.acknowledge("fenced", "m", 1, {0: [(0, 0, [ACCEPT])]})
    shared.acknowledge("gone", "m", 2, {0: [(0, 0, [ACCEPT])]})
    shared.fetch("from the new start", "m", 3, wait=SOON)


@script()
def share_starts(talk: Talk) -> None:
    shared = Sharing(talk)
    shared.write(2, 2)
    shared.initialize(0, epoch=1, start=-1)
    shared.fetch("latest", "m", 0, 0, wait=300)
    # Where it begins is looked up on the way, perhaps after that answer: what comes behind it is given.
    acquired: list[tuple[int, int, int]] = []

    def came_later() -> bool:
        shared.write(3)
        acquired[:] = shared.given(shared.ask("n", 0, 0, wait=500))
        return bool(acquired)

    talk.wait_until(came_later, "nothing comes later")
    talk.note("what came later", [first >= 4 and (first - 4) % 3 == 0 for first, _, _ in acquired])
    # Kafka tells it at the end of the wait, if it knows by then.
    codes: list[int] = []

    def refused() -> bool:
        response = shared.ask("m", 0, 0, group="nobody's group", wait=300)
        codes[:] = [partition.error_code for topic in response.responses for partition in topic.partitions]
        return bool(codes)

    talk.wait_until(refused, "a group without state is not refused")
    talk.note("never initialized", codes)


@script(differs={"committed": "the markers in it have the time at which they were written"})
def share_transactions(talk: Talk) -> None:
    shared = Sharing(talk).loaded()
    shared.configure("share.isolation.level", "read_committed")
    talk.settle()
    lost = shared.begin(f"lost {shared.topic_id}", 3)
    shared.fetch("open", "m", 0, 0, wait=500)
    shared.write(2)
    shared.fetch("still open", "m", 1, wait=500)
    shared.end(lost, commit=False)
    good = shared.begin(f"good {shared.topic_id}", 2)
    shared.fetch("aborted", "m", 2, wait=SOON)
    shared.end(good, commit=True)
    response = shared.fetch("committed", "m", 3, wait=SOON)
    talk.note("committed records", shared.given(response))
    shared.acknowledge("what is left", "m", 4, {0: [(3, 5, [ACCEPT, ACCEPT, GAP])]})
    shared.fetch("aborted ones are over", "m", -1)
