"""Reading: Fetch in every version, its limits and refusals, and sessions from their first to their last epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.messages.k00_produce import ProduceResponse
from ottla.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic
from ottla.protocol.schema import ZERO_UUID, Uuid

from . import script
from .produce import batch, produce

if TYPE_CHECKING:
    from tests.conversations.side_by_side import Talk

NOBODY = Uuid(bytes(range(16)))
BY_ID = 13


def fetch(
    version: int,
    *requested: tuple[int, int],
    name: str = "t",
    topic_id: Uuid = ZERO_UUID,
    partition_bytes: int = 1 << 20,
    most: int = 1 << 20,
    isolation: int = 0,
    epoch: int = -1,
    last_epoch: int = -1,
    session: int = 0,
    session_epoch: int = -1,
    forget: tuple[int, ...] = (),
    wait: int = 0,
) -> FetchRequest:
    """A request for (partition, offset) pairs of one topic."""
    named = {"topic_id": topic_id} if version >= BY_ID else {"topic": name}
    request = FetchRequest(max_wait_ms=wait, min_bytes=0, max_bytes=most, isolation_level=isolation)
    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=partition_bytes)
        for index, offset in requested
    ]
    for partition in partitions:
        if version >= 9:
            partition.current_leader_epoch = epoch
        if version >= 12:
            partition.last_fetched_epoch = last_epoch
    if partitions:
        request.topics = [FetchTopic(partitions=partitions, **named)]  # type: ignore[arg-type]
    if version >= 7:
        request.session_id, request.session_epoch = session, session_epoch
        if forget:
            request.forgotten_topics_data = [ForgottenTopic(partitions=list(forget), **named)]  # type: ignore[arg-type]
    return request


WHOLE = "Kafka cuts off at the byte, here an answer ends with a batch; clients drop what is cut off"


@script(differs={f"two batches v{version}": WHOLE for version in range(4, 19)})
def fetch_versions(talk: Talk) -> None:
    topic_id = talk.create("t", 2)
    for version in talk.versions[1]:
        ask = (f"empty v{version}", fetch(version, (0, 0), (1, 0), topic_id=topic_id))
        talk.ask(*ask, FetchResponse, version=version)
    for size in (3, 1, 5):
        talk.quietly(produce("t", batch(size)), ProduceResponse, version=12)
    for version in talk.versions[1]:
        table = {
            "all": fetch(version, (0, 0), (1, 0), topic_id=topic_id),
            "from the middle of a batch": fetch(version, (0, 2), topic_id=topic_id),
            "committed": fetch(version, (0, 0), topic_id=topic_id, isolation=1),
            "at the end": fetch(version, (0, 9), topic_id=topic_id),
            "beyond the end": fetch(version, (0, 10), topic_id=topic_id),
            "before the start": fetch(version, (0, -1), topic_id=topic_id),
            "one batch at least": fetch(version, (0, 0), topic_id=topic_id, partition_bytes=1, most=1),
            "two batches": fetch(version, (0, 0), topic_id=topic_id, partition_bytes=200),
            "nothing of it": fetch(version, (0, 0), topic_id=topic_id, partition_bytes=0),
            "unknown topic": fetch(version, (0, 0), (1, 0), name="nowhere", topic_id=NOBODY),
            "unknown partition": fetch(version, (7, 0), (0, 9), topic_id=topic_id),
            "no topic": fetch(version),
        }
        if version >= 9:
            table["this epoch"] = fetch(version, (0, 9), topic_id=topic_id, epoch=0)
            table["an epoch to come"] = fetch(version, (0, 9), topic_id=topic_id, epoch=5)
        if version >= 12:
            table["a history of its own"] = fetch(version, (0, 20), topic_id=topic_id, last_epoch=0)
            table["the same history"] = fetch(version, (0, 9), topic_id=topic_id, last_epoch=0)
        for label, request in table.items():
            # Kafka puts the partitions that it does not know behind the others.
            talk.ask(f"{label} v{version}", request, FetchResponse, version=version, unordered=("partitions",))


@script()
def fetch_sessions(talk: Talk) -> None:
    topic_id = talk.create("t", 3)
    for version in (7, 11, 12, 13, talk.versions[1][-1]):
        _session(talk, topic_id, version)


def _session(talk: Talk, topic_id: Uuid, version: int) -> None:
    def ask(label: str, *requested: tuple[int, int], session: int, epoch: int, forget: tuple[int, ...] = ()) -> int:
        request = fetch(version, *requested, topic_id=topic_id, session=session, session_epoch=epoch, forget=forget)
        return talk.ask(f"{label} v{version}", request, FetchResponse, version=version).session_id

    none = ask("no session", (0, 0), session=0, epoch=-1)
    assert none == 0
    ask("nothing to remember", session=0, epoch=0)
    mine = ask("begun", (0, 0), (1, 0), (2, 0), session=0, epoch=0)
    ask("nothing new", session=mine, epoch=1)
    talk.quietly(produce("t", batch(2), first=1), ProduceResponse, version=12)
    ask("news in one", session=mine, epoch=2)
    ask("the same news again", session=mine, epoch=3)
    ask("read on", (1, 2), session=mine, epoch=4)
    ask("an epoch twice", session=mine, epoch=4)
    ask("an epoch too far", session=mine, epoch=7)
    ask("forgotten", session=mine, epoch=5, forget=(0, 1))
    ask("in again", (0, 0), session=mine, epoch=6)
    ask("with an error", (2, 99), session=mine, epoch=7)
    ask("with an error still", session=mine, epoch=8)
    other = ask("another in its place", (2, 0), session=mine, epoch=0)
    ask("gone", session=mine, epoch=9)
    ask("ended", (2, 0), session=other, epoch=-1)
    ask("after its end", session=other, epoch=1)
    ask("never there", session=12345, epoch=1)
    last = ask("one more", (0, 0), session=0, epoch=0)
    ask("all forgotten", session=last, epoch=1, forget=(0,))
    ask("after all was forgotten", session=last, epoch=2)
