"""Conversations about transactions: normal, wrong, fenced, late, repeated, by clients of every version.

They are held with Apache Kafka, whose answers are kept as a fixture, and with ottla, which must answer the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k09_offset_fetch as k09
from ottla.protocol.messages import k20_delete_topics as k20
from ottla.protocol.messages import k61_describe_producers as k61
from ottla.protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.k66_list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tests.conversations.conversation import LONG_MS, PASSING_MS
from tests.conversations.transactions.talk import Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conversations.transactions.talk import TransactionTalk

SETTINGS = {
    "transaction.state.log.num.partitions": "4",
    "offsets.topic.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",  # records of conversations have no timestamp, so that retention would delete them
}
NO_PRODUCER = 900_000  # an id, or a distance to one, that no broker has given to a producer
RECORDINGS = Path(__file__).with_name("recorded")
CONVERSATIONS: dict[str, Callable[[TransactionTalk, str], None]] = {}


def conversation(function: Callable[[TransactionTalk, str], None]) -> Callable[[TransactionTalk, str], None]:
    CONVERSATIONS[function.__name__] = function
    return function


@conversation
def ids_without_transactions(talk: TransactionTalk, topic: str) -> None:
    for version in range(6):
        talk.init(None, version=version)
        talk.init(None, version=version, timeout_ms=-5)
    for version in (3, 4, 5):
        talk.init(None, version=version, had=Producer(None, NO_PRODUCER, 4))


@conversation
def initializing(talk: TransactionTalk, topic: str) -> None:
    name = f"{topic}-init"
    for version in range(6):
        talk.init("", version=version)
        talk.init(name, version=version, timeout_ms=0)
        talk.init(name, version=version, timeout_ms=-1)
        talk.init(name, version=version, timeout_ms=900_001)
        talk.init(name, version=version)
        talk.init(f"{name}-{version}", version=version)
    for version in (3, 4, 5):
        for had in ((-1, 0), (NO_PRODUCER, -1)):
            request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000)
            request.producer_id, request.producer_epoch = had
            talk.ask(request, InitProducerIdResponse, version)
        current = talk.init(name, version=version)
        recovered = talk.init(name, version=version, had=current)
        talk.init(name, version=version, had=current)
        talk.init(name, version=version, had=current.at(epoch_by=-1))
        talk.init(name, version=version, had=recovered.at(epoch_by=1))
        talk.init(name, version=version, had=recovered.at(id_by=NO_PRODUCER))
        talk.init(name, version=version, had=recovered.at(id_by=1_000_000))
        talk.init(f"{name}-unknown-{version}", version=version, had=Producer(None, NO_PRODUCER, 5))
    talk.describe(name, f"{name}-0", f"{name}-nobody", "")


@conversation
def older_clients(talk: TransactionTalk, topic: str) -> None:
    name = f"{topic}-old"
    producer = talk.init(name, version=1)
    for version in range(4):
        talk.add(producer, (topic, 0), (topic, 1), version=version)
        talk.add(producer, (topic, 0), version=version)
        talk.produce(producer, (topic, 0), version, version=3 + version)
        talk.describe(name)
        talk.end(producer, committed=version % 2 == 0, version=version)
        talk.end(producer, committed=version % 2 == 0, version=version)
        talk.end(producer, committed=version % 2 == 1, version=version)
    talk.end(producer, committed=True, version=4)
    talk.describe(name)


@conversation
def older_clients_that_are_wrong(talk: TransactionTalk, topic: str) -> None:
    name = f"{topic}-wrong"
    for version in range(4):
        talk.add(Producer(f"{name}-nobody", NO_PRODUCER, 0), (topic, 0), version=version)
        talk.add(Producer("", NO_PRODUCER, 0), (topic, 0), version=version)
        talk.end(Producer(f"{name}-nobody", NO_PRODUCER, 0), committed=True, version=version)
        talk.end(Producer("", NO_PRODUCER, 0), committed=True, version=version)
        talk.add_offsets(Producer(f"{name}-nobody", NO_PRODUCER, 0), f"{topic}-group", version=version)
        talk.add_offsets(Producer("", NO_PRODUCER, 0), f"{topic}-group", version=version)
    for version in range(4):
        producer = talk.init(f"{name}-{version}", version=version)
        talk.end(producer, committed=True, version=version)
        talk.end(producer, committed=False, version=version)
        for stranger in (producer.at(id_by=NO_PRODUCER), producer.at(epoch_by=1), producer.at(epoch_by=-1)):
            talk.add(stranger, (topic, 0), version=version)
            talk.add_offsets(stranger, f"{topic}-group", version=version)
            talk.end(stranger, committed=True, version=version)
        talk.add(producer, (topic, 0), (topic, 7), (f"{topic}-none", 0), version=version)
        talk.add(producer, ("__consumer_offsets", 0), (topic, 0), version=version)
        talk.add(producer, version=version)
        talk.describe(f"{name}-{version}")
        talk.add(producer, (topic, 0), version=version)
        for stranger in (producer.at(id_by=NO_PRODUCER), producer.at(epoch_by=1), producer.at(epoch_by=-1)):
            talk.end(stranger, committed=True, version=version)
        talk.end(producer, committed=False, version=version)


@conversation
def newer_clients(talk: TransactionTalk, topic: str) -> None:
    name = f"{topic}-new"
    producer = talk.init(name)
    for committed in (True, False, True):
        talk.produce(producer, (topic, 0), 0)
        talk.produce(producer, (topic, 1), 0, values=3)
        talk.produce(producer, (topic, 1), 3)
        talk.produce(producer, (topic, 1), 3)
        talk.describe(name)
        ended = talk.end(producer, committed)
        talk.end(producer, committed)
        talk.end(producer, not committed)
        talk.produce(producer, (topic, 0), 1)
        producer = ended
    talk.end(producer, committed=True)
    aborted = talk.end(producer, committed=False)
    talk.end(producer, committed=False)
    talk.end(producer, committed=True)
    talk.end(aborted.at(epoch_by=1), committed=True)
    talk.end(aborted.at(epoch_by=-5), committed=True)
    talk.end(aborted.at(id_by=NO_PRODUCER), committed=True)
    talk.describe(name)
    talk.end(Producer(f"{name}-nobody", NO_PRODUCER, 0), committed=True)
    talk.end(Producer("", NO_PRODUCER, 0), committed=True)


@conversation
def clients_that_change_their_version(talk: TransactionTalk, topic: str) -> None:
    name = f"{topic}-mixed"
    producer = talk.init(name)
    talk.add(producer, (topic, 0))
    talk.produce(producer, (topic, 0), 0, version=11)
    producer = talk.end(producer, committed=True, version=5)
    talk.produce(producer, (topic, 0), 0, version=12)
    talk.end(producer, committed=True, version=4)
    talk.end(producer, committed=True, version=4)
    talk.describe(name)
    talk.add(producer, (topic, 1))
    talk.produce(producer, (topic, 1), 0, version=10)
    talk.end(producer, committed=False, version=4)
    talk.produce(producer, (topic, 1), 1, version=12)
    talk.end(producer, committed=False, version=5)
    talk.describe(name)


@conversation
def producing_outside_of_a_transaction(talk: TransactionTalk, topic: str) -> None:
    for version in (3, 8, 10, 11, 12):
        producer = talk.init(f"{topic}-outside-{version}")
        if version < 12:
            talk.produce(producer, (topic, 0), 0, version=version)
            talk.add(producer, (topic, 1))
            talk.produce(producer, (topic, 0), 0, version=version)
        talk.produce(producer.at(epoch_by=-1), (topic, 1), 0, version=version)
        talk.produce(producer.at(epoch_by=1), (topic, 1), 0, version=version)
        talk.produce(producer.at(id_by=NO_PRODUCER), (topic, 1), 0, version=version)
        talk.produce(producer._replace(transactional_id=f"{topic}-stranger"), (topic, 1), 0, version=version)
        talk.produce(producer, (topic, 1), 0, version=version, name_id=False)
        talk.produce(producer, (topic, 1), 5, version=version)
        talk.produce(producer, (topic, 1), 0, version=version)
        talk.produce(producer, (topic, 1), 2, version=version)
        talk.produce(producer, (topic, 1), 1, version=version, transactional=False)
        talk.produce(producer, (topic, 1), 1, version=version)
        talk.end(producer, committed=False, version=5 if version == 12 else 4)


@conversation
def fencing(talk: TransactionTalk, topic: str) -> None:
    for version in (4, 5):
        name = f"{topic}-fenced-{version}"
        old = talk.init(name)
        talk.add(old, (topic, 0))
        talk.produce(old, (topic, 0), 0, version=12 if version == 5 else 11)
        talk.init(name, wait=False)
        talk.settle(name)
        talk.describe(name)
        new = talk.init(name)
        talk.produce(old, (topic, 0), 1, version=12 if version == 5 else 11)
        talk.add(old, (topic, 1))
        talk.end(old, committed=True, version=version)
        talk.end(old, committed=False, version=version)
        talk.init(name, had=old)
        talk.add(new, (topic, 0))
        talk.end(new, committed=True, version=version)


@conversation
def timing_out(talk: TransactionTalk, topic: str) -> None:
    # Nothing is asked between what begins a transaction and its end, which may come at any moment.
    for version in (4, 5):
        name = f"{topic}-late-{version}"
        producer = talk.init(name, timeout_ms=PASSING_MS if version == 4 else 6000)
        if version == 4:
            talk.add(producer, (topic, 0))
        else:
            talk.produce(producer, (topic, 0), 0, version=12)
        talk.settle(name, "Ongoing")
        talk.describe(name)
        talk.produce(producer, (topic, 0), 1, version=12 if version == 5 else 11)
        talk.add(producer, (topic, 1))
        talk.end(producer, committed=True, version=version)
        talk.end(producer, committed=False, version=version)
        talk.init(name, had=producer)
        talk.init(name)


@conversation
def brokers_that_add_and_verify(talk: TransactionTalk, topic: str) -> None:
    producer, other = talk.init(f"{topic}-broker-1"), talk.init(f"{topic}-broker-2")
    for version in (4, 5):
        talk.add_for((producer, True, [(topic, 0)]), version=version)
        talk.add_for((producer, False, [(topic, 0)]), version=version)
        talk.add_for(
            (producer, True, [(topic, 0), (topic, 1)]), (other, False, [(topic, 1), (topic, 7)]), version=version
        )
        talk.add_for((producer.at(epoch_by=1), True, [(topic, 0)]), version=version)
        talk.add_for((producer.at(epoch_by=1), False, [(topic, 0)]), version=version)
        talk.add_for((producer.at(id_by=NO_PRODUCER), True, [(topic, 0)]), version=version)
        talk.add_for(
            (Producer("", NO_PRODUCER, 1), True, [(topic, 0)]),
            (Producer("x", NO_PRODUCER, 1), False, [(topic, 0)]),
            version=version,
        )
        producer = talk.end(producer, committed=True)
    talk.add_for((producer, False, [("__consumer_offsets", 0)]))
    talk.end(producer, committed=False)
    talk.end(other, committed=False)


@conversation
def offsets_in_transactions(talk: TransactionTalk, topic: str) -> None:
    for version in range(6):
        group, name = f"{topic}-group-{version}", f"{topic}-offsets-{version}"
        producer = talk.init(name)
        if version < 5:
            talk.commit_offset(producer, group, (topic, 0), 4, version=version)
            talk.add_offsets(producer, group, version=min(version, 4))
            talk.add_offsets(producer, group, version=min(version, 4))
        talk.commit_offset(producer, group, (topic, 0), 5, version=version)
        talk.commit_offset(producer, group, (topic, 9), 5, version=version)
        talk.commit_offset(producer, group, (f"{topic}-none", 0), 5, version=version)
        talk.commit_offset(producer, "", (topic, 0), 5, version=version)
        talk.commit_offset(producer.at(epoch_by=1), f"{group}-2", (topic, 0), 5, version=version)
        talk.commit_offset(producer.at(id_by=NO_PRODUCER), f"{group}-3", (topic, 0), 5, version=version)
        if version >= 3:
            talk.commit_offset(producer, group, (topic, 0), 6, version=version, member=("somebody", 3))
            talk.commit_offset(producer, group, (topic, 0), 6, version=version, member=("", 3))
        fetch(talk, group, topic, stable=True)
        fetch(talk, group, topic, stable=False)
        talk.end(producer, committed=version % 2 == 0, version=5 if version == 5 else 4)
        fetch(talk, group, topic, stable=True)


@conversation
def unstable_offsets(talk: TransactionTalk, topic: str) -> None:
    group = f"{topic}-group"
    producer = talk.init(f"{topic}-unstable")
    talk.commit_offset(producer, group, (topic, 0), 5)
    producer = talk.end(producer, committed=True)
    talk.commit_offset(producer, group, (topic, 0), 6)
    talk.commit_offset(producer, group, (topic, 1), 7)
    for committed in (False, True):
        for version in (7, 8, 9):
            for stable in (True, False):
                for indexes in ([0, 1, 2], None):
                    fetch_all(talk, group, topic, indexes, version=version, stable=stable)
        if not committed:
            talk.end(producer, committed=True)


def fetch_all(
    talk: TransactionTalk, group: str, topic: str, indexes: list[int] | None, *, version: int, stable: bool
) -> None:
    request = k09.OffsetFetchRequest(require_stable=stable)
    if version < 8:
        request.group_id = group
        requested = None if indexes is None else [k09.OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)]
        request.topics = requested
    else:
        expected = k09.OffsetFetchRequestGroup(group_id=group, topics=None)
        if indexes is not None:
            expected.topics = [k09.OffsetFetchRequestTopics(name=topic, partition_indexes=indexes)]
        request.groups = [expected]
    talk.ask(request, k09.OffsetFetchResponse, version)


@conversation
def a_topic_made_anew(talk: TransactionTalk, topic: str) -> None:
    for committed in (True, False):
        name = f"{topic}-{'kept' if committed else 'dropped'}"
        talk.talk.create(name, 2)
        producer = talk.init(name)
        talk.produce(producer, (name, 0), 0)
        talk.produce(producer, (name, 1), 0)
        talk.produce(producer, (topic, 0), 0)
        talk.commit_offset(producer, name, (name, 0), 5)
        request = k20.DeleteTopicsRequest(topics=[k20.DeleteTopicState(name=name)], timeout_ms=LONG_MS)
        talk.talk.quietly(request, k20.DeleteTopicsResponse)
        talk.until_gone(name)
        talk.produce(producer, (topic, 0), 1)
        talk.talk.create(name, 1)
        talk.talk.wait_until(lambda name=name: talk.plain(name) is ErrorCode.NONE, "it does not take records")  # type: ignore[misc]
        talk.describe(name)
        talk.produce(producer, (name, 0), 1)
        talk.produce(producer, (name, 0), 0)
        producer = talk.end(producer, committed)
        talk.describe(name)
        fetch(talk, name, name, stable=True)
        producers(talk, name)
        talk.produce(producer, (name, 0), 0)
        talk.end(producer, committed)
        producers(talk, name)


def fetch(talk: TransactionTalk, group: str, topic: str, *, stable: bool) -> None:
    expected = k09.OffsetFetchRequestGroup(
        group_id=group, topics=[k09.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    )
    talk.ask(k09.OffsetFetchRequest(groups=[expected], require_stable=stable), k09.OffsetFetchResponse, 9)


@conversation
def markers_by_hand(talk: TransactionTalk, topic: str) -> None:
    for version in (1, 2):
        producer = talk.init(f"{topic}-hand-{version}")
        talk.write_markers(producer, [(topic, 0), (topic, 9), (f"{topic}-none", 0)], version=version)
        talk.add(producer, (topic, 0))
        talk.produce(producer, (topic, 0), 0, version=11)
        producers(talk, topic)
        talk.write_markers(producer.at(epoch_by=-1), [(topic, 0)], version=version)
        talk.write_markers(producer, [(topic, 0)], transaction_version=2, version=version)
        talk.end(producer, committed=False, version=4)
        stranger = Producer(None, 1_000_000 + version, 5)
        for epoch in (5, 4, 5, 6):
            talk.write_markers(stranger, [(topic, 1)], coordinator_epoch=epoch, version=version)
            producers(talk, topic)
        talk.write_markers(stranger.at(epoch_by=-1), [(topic, 1)], coordinator_epoch=7, version=version)
        talk.write_markers(stranger, [(topic, 1)], coordinator_epoch=7, transaction_version=2, version=version)
        talk.write_markers(stranger.at(epoch_by=3), [(topic, 1)], coordinator_epoch=8, version=version, committed=True)
        producers(talk, topic)


def producers(talk: TransactionTalk, topic: str) -> None:
    names = [(topic, [0, 1, 9]), (f"{topic}-none", [0]), ("not/a/name", [0])]
    request = k61.DescribeProducersRequest(
        topics=[k61.TopicRequest(name=name, partition_indexes=indexes) for name, indexes in names]
    )
    talk.ask(request, k61.DescribeProducersResponse)


@conversation
def listing(talk: TransactionTalk, topic: str) -> None:
    one = talk.init(f"{topic}-list-1")
    talk.init(f"{topic}-list-2")
    talk.add(one, (topic, 0), (topic, 1))
    talk.pause()
    talk.describe(f"{topic}-list-1", f"{topic}-list-2", f"{topic}-list-3")
    mine = {"transactional_id_pattern": f"{topic}-list-.*"}
    for filters in (
        {},
        {"state_filters": ["Ongoing"]},
        {"state_filters": ["Ongoing", "Empty", "Nonsense", "ongoing"]},
        {"state_filters": ["Nonsense"]},
        {"producer_id_filters": [one.id]},
        {"producer_id_filters": [one.id + 100_000]},
        {"duration_filter": 0, "state_filters": ["Ongoing"]},
        {"duration_filter": 1_000_000, "state_filters": ["Ongoing"]},
    ):
        talk.ask(ListTransactionsRequest(**mine, **filters), ListTransactionsResponse, 2)
    for pattern in (f"{topic}-list-1", f"{topic}-list", "(", "[a", "a{1001}"):
        talk.ask(ListTransactionsRequest(transactional_id_pattern=pattern), ListTransactionsResponse, 2)
    talk.ask(ListTransactionsRequest(producer_id_filters=[one.id]), ListTransactionsResponse, 0)
    talk.ask(ListTransactionsRequest(producer_id_filters=[one.id], duration_filter=0), ListTransactionsResponse, 1)
    talk.end(one, committed=False, version=4)


def hold(name: str, talk: TransactionTalk) -> dict[str, Any]:
    """Have one conversation and return what was answered, by the number and name of the request."""
    topic = name.replace("_", "-")
    talk.talk.create(topic, 2)
    talk.begin()
    CONVERSATIONS[name](talk, topic)
    return talk.transcript
