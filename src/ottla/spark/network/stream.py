"""Streams of the format `ottla`: how far each micro-batch goes, what has become of topics meanwhile, group commits.

Lives in one Python process beside the driver for as long as its query runs; the rows are read by `network_read`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

from ottla.client.groups import commit as commit_offsets
from ottla.protocol.errors import KafkaError
from ottla.spark.connect import reachable
from ottla.spark.data_loss import DataLossError, warn
from ottla.spark.network.offsets import (
    Bounds,
    NetworkTask,
    OffsetRange,
    Place,
    chosen_partitions,
    find_topics,
    resolve,
    split_ranges,
)
from ottla.spark.network.read import read_range
from ottla.spark.options import OptionError
from ottla.spark.worker import settle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit

    from ottla.client.client import Client
    from ottla.spark.network.options import NetworkPlan

_IDS = ""  # no topic has an empty name


@dataclass(slots=True)
class Position:
    """Where a stream is: the next offset of each partition, and the ids of the topics in which these were counted.

    As JSON it is what Spark's own source writes, {"orders": {"0": 23}}, and the ids under an empty name; a checkpoint
    of Spark's own source is understood.
    """

    offsets: dict[Place, int]
    ids: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Position:
        """Read what Spark kept."""
        offsets = {
            (topic, int(number)): int(offset)
            for topic, numbers in given.items()
            if topic != _IDS
            for number, offset in numbers.items()
        }
        return cls(offsets, dict(given.get(_IDS, {})))

    def to_json(self) -> dict[str, dict[str, Any]]:
        """What Spark is to keep, in a stable order."""
        found: dict[str, dict[str, Any]] = {}
        for (topic, number), offset in sorted(self.offsets.items()):
            found.setdefault(topic, {})[str(number)] = offset
        return found | {_IDS: dict(sorted(self.ids.items()))} if self.ids else found


class NetworkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches."""

    def __init__(self, plan: NetworkPlan) -> None:
        self._plan = plan
        self._open: Client | None = None
        self._target: Position | None = None
        self._committed: dict[Place, int] = {}
        self._newest: Position | None = None
        self._waiting_since: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What an executor needs: the plan alone."""
        return {"_plan": self._plan}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_plan"])  # type: ignore[misc]

    # Called by Spark, in this order.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new query begins."""
        plan = self._plan
        with reachable(plan.settings.bootstrap):
            ids, bounds = self._look()
            starts = resolve(
                self._client,
                plan.start,
                bounds,
                "startingOffsets",
                strict_times=plan.strict_times,
                committed=plan.settings.committed,
            )
        self._committed = dict(starts)
        return Position(starts, ids).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """What maxOffsetsPerTrigger says."""
        return ReadMaxRows(self._plan.most_offsets) if self._plan.most_offsets else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note where everything ends now: the query goes up to there, in as many batches as its limit makes of it."""
        with reachable(self._plan.settings.bootstrap):
            ids, bounds = self._look()
        self._target = Position(bounds.latest, ids)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """How far the next micro-batch goes."""
        before = Position.parse(start)
        # Spark asks only when everything before `start` is done, and tells so much sooner than commit() does.
        self._commit_group(before)
        with reachable(self._plan.settings.bootstrap):
            # Brokers come and go while a query runs: only one that stays away for long ends it.
            ids, bounds = self._client.retrying(lambda: self._look(begun=True))
        self._newest = Position(bounds.latest, ids)
        if self._target is not None:
            ends = {
                p: min(end, self._target.offsets[p]) for p, end in bounds.latest.items() if p in self._target.offsets
            }
        else:
            ends = bounds.latest
        begun = self._begun(before, ids, bounds)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        ends = _limited(begun, ends, most)
        if self._target is None and not isinstance(limit, ReadAllAvailable) and self._too_few(begun, ends):
            return start
        return Position(
            ends, {topic: each for topic, each in ids.items() if any(p[0] == topic for p in ends)}
        ).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The newest offsets seen, for the query's progress."""
        return None if self._newest is None else self._newest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of one micro-batch: the same for the same offsets, whenever it is run."""
        before, after = Position.parse(start), Position.parse(end)
        ranges = []
        for (topic, number), last in sorted(after.offsets.items()):
            known = before.offsets.get((topic, number))
            recreated = topic in before.ids and before.ids[topic] != after.ids.get(topic, before.ids[topic])
            first = 0 if known is None or recreated else known
            if first < last:
                ranges.append(OffsetRange(topic, after.ids.get(topic, ""), number, first, last))
        return [
            NetworkTask(each)
            for each in split_ranges(ranges, least_tasks=self._plan.least_tasks, largest=self._plan.largest_task)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, NetworkTask)
        settle()
        if partition.range is not None:
            yield from read_range(partition.range, self._plan.settings)

    def commit(self, end: dict[str, Any]) -> None:
        """Everything before `end` is processed."""
        self._commit_group(Position.parse(end))

    def stop(self) -> None:
        """Hang up."""
        if self._open is not None:
            self._open.close()
            self._open = None

    # Inside.

    @property
    def _client(self) -> Client:
        if self._open is None:
            self._open = self._plan.settings.client()
        return self._open

    def _look(self, *, begun: bool = False) -> tuple[dict[str, str], Bounds]:
        """The ids of the topics there are now, and the offsets of their partitions.

        Before a stream has begun a topic that is named has to be there; later, what is missing is a loss.
        """
        plan = self._plan
        topics = find_topics(self._client, plan.selection, required=not begun)
        partitions = chosen_partitions(topics, plan.selection)
        bounds = Bounds.ask(self._client, partitions, committed=plan.settings.committed)
        return {name: str(info.id) for name, info in topics.items()}, bounds

    def _begun(self, before: Position, ids: dict[str, str], bounds: Bounds) -> dict[Place, int]:
        """Where each partition of the next batch begins; says what was lost, and stops if that is not allowed."""
        begun: dict[Place, int] = {}
        for topic in sorted({topic for topic, _ in before.offsets}):
            if topic not in ids:
                self._lost(
                    f"topic {topic} is gone; the stream had read it up to {_of(before, topic)}",
                    "failOnDataLoss=false goes on with the other topics",
                )
            elif topic in before.ids and before.ids[topic] != ids[topic]:
                self._lost(
                    f"topic {topic} was deleted and recreated: its id was {before.ids[topic]} and is {ids[topic]}, and "
                    f"the stream had read the old one up to {_of(before, topic)}",
                    "start with a new checkpoint, or let failOnDataLoss=false read the new topic from its beginning",
                )
        for place, end in bounds.latest.items():
            topic = place[0]
            recreated = topic in before.ids and before.ids[topic] != ids.get(topic)
            known = before.offsets.get(place)
            first = bounds.earliest[place]
            at = 0 if known is None or recreated else known
            if at < first or at > end:
                known_as = f"new partition {topic}-{place[1]}" if known is None else f"{topic}-{place[1]}"
                self._lost(
                    f"{known_as} has offsets {first} to {end}, and the stream is at {at}: records in between are gone",
                    "failOnDataLoss=false goes on with what is there",
                )
                at = min(max(at, first), end)
            begun[place] = at
        return begun

    def _lost(self, what: str, way_out: str) -> None:
        if self._plan.settings.fail_on_data_loss:
            raise DataLossError(f"{what}; {way_out}")
        warn("ottla", what)

    def _too_few(self, begun: dict[Place, int], ends: dict[Place, int]) -> bool:
        """Whether minOffsetsPerTrigger says to wait, which maxTriggerDelay bounds."""
        fewest = self._plan.fewest_offsets
        waiting = sum(max(end - begun.get(place, 0), 0) for place, end in ends.items())
        if not fewest or not waiting:
            return False
        now = time.monotonic()
        if waiting >= fewest or now - (self._waiting_since or now) >= self._plan.longest_delay:
            self._waiting_since = None
            return False
        self._waiting_since = self._waiting_since or now
        return True

    def _commit_group(self, done: Position) -> None:
        group = self._plan.group
        if group is None:
            return
        changed = {place: offset for place, offset in done.offsets.items() if self._committed.get(place) != offset}
        if not changed:
            return
        try:
            with reachable(self._plan.settings.bootstrap):
                commit_offsets(self._client, group, changed)
        except KafkaError as error:
            raise OptionError(
                f"groupId: the offsets of group {group} cannot be committed: {error}; a stream needs a group of its "
                f"own, without members"
            ) from error
        self._committed.update(changed)


def _of(position: Position, topic: str) -> str:
    at = [f"{number}: {offset}" for (name, number), offset in sorted(position.offsets.items()) if name == topic]
    return "{" + ", ".join(at) + "}"


def _limited(begun: dict[Place, int], ends: dict[Place, int], most: int) -> dict[Place, int]:
    """Take as many offsets as the limit allows, from each partition in proportion to what it has."""
    waiting = {place: max(end - begun.get(place, 0), 0) for place, end in ends.items()}
    total = sum(waiting.values())
    if not most or total <= most:
        return {place: max(end, begun.get(place, 0)) for place, end in ends.items()}
    found = {}
    left = most
    for place, count in sorted(waiting.items()):
        # At least one from whoever has any, as long as there is room, or a small partition would wait for ever.
        share = min(max(most * count // total, 1 if count else 0), count, left)
        left -= share
        found[place] = begun.get(place, 0) + share
    return found
