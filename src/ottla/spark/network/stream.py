"""Streams of the format "ottla": the end of each micro-batch, topics that change meanwhile, group commits.

Runs in one Python process beside the driver for as long as its query; `read` reads the rows.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

from ottla.client.groups import commit as commit_offsets
from ottla.protocol.errors import KafkaError
from ottla.spark.connect import reachable
from ottla.spark.data_loss import report_loss
from ottla.spark.network.offsets import (
    Bounds,
    NetworkTask,
    OffsetRange,
    chosen_partitions,
    find_topics,
    list_all,
    plan_tasks,
    resolve,
)
from ottla.spark.network.read import read_ranges
from ottla.spark.offsets import EARLIEST, LATEST
from ottla.spark.options import OptionError
from ottla.spark.worker import settle
from ottla.storage.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit

    from ottla.client.client import Client, TopicInfo
    from ottla.spark.network.options import NetworkPlan

# No topic name has a colon. Spark's own source skips an entry without partitions.
_NOTES = "ottla:"
_UNLIMITED = 2**62
_OLD_IDS = ""  # where earlier versions kept the ids


@dataclass(slots=True)
class Position:
    """The offset of a stream: the next offset of each partition, and the ids of the topics they belong to.

    Its JSON is that of Spark's own source, {"orders": {"0": 23}}. The name of one more entry, without partitions, holds
    the rest as JSON, so that Spark's own source can continue the checkpoint. `start` is where a query's first batch
    begins: Spark stores only where it ends, and asks again after a restart.
    """

    offsets: dict[TopicPartition, int]
    ids: dict[str, str] = field(default_factory=dict)
    start: dict[TopicPartition, int] | None = None

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> Position:
        """Parse what Spark stored."""
        ids: dict[str, str] = dict(options.get(_OLD_IDS, {}))
        start = None
        for name in options:
            if name.startswith(_NOTES):
                notes = json.loads(name.removeprefix(_NOTES))
                ids = notes.get("ids", {})
                start = _parse_offsets(notes["start"]) if "start" in notes else None
        return cls(_parse_offsets(options), ids, start)

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return what Spark must store, in a stable order."""
        notes: dict[str, Any] = {}
        if self.ids:
            notes["ids"] = dict(sorted(self.ids.items()))
        if self.start is not None:
            notes["start"] = _offsets_json(self.start)
        offsets = _offsets_json(self.offsets)
        return offsets | {_NOTES + json.dumps(notes): {}} if notes else offsets


def _parse_offsets(offsets: Mapping[str, Any]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(number)): int(offset)
        for topic, numbers in offsets.items()
        if topic != _OLD_IDS and not topic.startswith(_NOTES)
        for number, offset in numbers.items()
    }


def _offsets_json(offsets: dict[TopicPartition, int]) -> dict[str, dict[str, int]]:
    listed: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        listed.setdefault(topic, {})[str(number)] = offset
    return listed


class NetworkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plan micro-batches."""

    def __init__(self, plan: NetworkPlan) -> None:
        self._plan = plan
        self._open: Client | None = None
        self._target: Position | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._newest: Position | None = None
        self._initial: dict[TopicPartition, int] | None = None
        self._topics: tuple[float, dict[str, TopicInfo]] | None = None
        self._last_trigger: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what an executor needs: the plan alone."""
        return {"_plan": self._plan}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_plan"])  # type: ignore[misc]

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query begins."""
        plan = self._plan
        with reachable(plan.settings.bootstrap):
            topics, partitions = self._find_partitions(required=True)
            committed = plan.settings.committed
            bounds = Bounds.ask(self._client, partitions, committed=committed)
            starts = resolve(
                self._client, plan.start, bounds, "startingOffsets", strict_times=plan.strict_times, committed=committed
            )
        self._initial = starts
        self._committed = dict(starts)
        return Position(starts, _ids(topics)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of maxOffsetsPerTrigger."""
        plan = self._plan
        if plan.most_offsets:
            return ReadMaxRows(plan.most_offsets)
        # Spark asks for everything with ReadAllAvailable, whatever minOffsetsPerTrigger is.
        return ReadMaxRows(_UNLIMITED) if plan.fewest_offsets else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end offsets: the query reads up to them, in as many batches as its limit requires."""
        with reachable(self._plan.settings.bootstrap):
            topics, latest = self._latest(required=True)
        self._target = Position(latest, _ids(topics))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where the next micro-batch ends."""
        before = Position.parse(start)
        # Spark calls this only when everything before `start` is processed, which is earlier than commit().
        self._commit_group(before)
        with reachable(self._plan.settings.bootstrap):
            # Retry: a broker that restarts must not end the query.
            topics, latest = self._client.retrying(lambda: self._latest(required=False))
            ids = _ids(topics)
            begun = self._client.retrying(lambda: self._begun(before, ids, latest))
        self._newest = Position(latest, ids)
        ends = latest
        if self._target is not None:
            target = self._target.offsets
            ends = {partition: min(end, target[partition]) for partition, end in latest.items() if partition in target}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        if self._target is None and not isinstance(limit, ReadAllAvailable) and self._too_few(begun, ends):
            return start
        ends = _limited(begun, ends, most)
        kept = {partition.topic for partition in ends}
        after = Position(ends, {topic: topic_id for topic, topic_id in ids.items() if topic in kept})
        if after.offsets == before.offsets and after.ids == before.ids:
            return start  # the same text: Spark compares it to find out whether there is a new batch
        if before.offsets == self._initial:
            after.start = before.offsets
        return after.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the newest offsets seen, for the query's progress."""
        return None if self._newest is None else self._newest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of one micro-batch: the same for the same offsets, whenever it runs."""
        before, after = Position.parse(start), Position.parse(end)
        if before.offsets == self._initial:
            before = self._first_start(before, after)
        ranges = []
        for (topic, number), last in sorted(after.offsets.items()):
            known = before.offsets.get(TopicPartition(topic, number))
            recreated = topic in before.ids and before.ids[topic] != after.ids.get(topic, before.ids[topic])
            first = 0 if known is None or recreated else known
            if first < last:
                ranges.append(OffsetRange(topic, after.ids.get(topic, ""), number, first, last))
        return plan_tasks(ranges, least_tasks=self._plan.least_tasks, largest=self._plan.largest_task)

    def _first_start(self, before: Position, after: Position) -> Position:
        """Return where the first batch begins: where it began when it was planned, which may be before a restart."""
        if after.start is not None:
            return Position(after.start, before.ids)
        if after.ids:
            return before  # planned by this source, without a record
        bound = self._plan.start
        moves = bound.default == LATEST and not bound.offsets
        if moves or bound.timestamp is not None or bound.timestamps or LATEST in _values(bound.offsets):
            self._lost(
                "the first batch of this checkpoint was planned by Spark's own source and is not finished: its "
                "starting offsets are in the file sources/0/0 of the checkpoint, which a Python source cannot read",
                "give them as startingOffsets, or finish the batch with Spark's own source",
            )
        return before

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        assert isinstance(partition, NetworkTask)
        settle()
        if partition.ranges:
            yield from read_ranges(partition.ranges, self._plan.settings)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit `end` for the group: Spark has processed everything before it."""
        self._commit_group(Position.parse(end))

    def stop(self) -> None:
        """Close the client."""
        if self._open is not None:
            self._open.close()
            self._open = None

    @property
    def _client(self) -> Client:
        if self._open is None:
            self._open = self._plan.settings.client()
        return self._open

    def _find_partitions(self, *, required: bool) -> tuple[dict[str, TopicInfo], dict[str, list[int]]]:
        """Return the topics and their partitions; named topics must exist before a stream begins.

        The option partition.metadata.cache.ttl.ms keeps them for that time.
        """
        now = time.monotonic()
        if self._topics is None or now - self._topics[0] >= self._plan.topics_age:
            self._topics = now, find_topics(self._client, self._plan.selection, required=required)
        topics = self._topics[1]
        return topics, chosen_partitions(topics, self._plan.selection)

    def _latest(self, *, required: bool) -> tuple[dict[str, TopicInfo], dict[TopicPartition, int]]:
        """Return the topics and the end of each partition, with two requests for a single broker."""
        try:
            topics, partitions = self._find_partitions(required=required)
            return topics, list_all(self._client, partitions, LATEST, committed=self._plan.settings.committed)
        except KafkaError:
            self._topics = None
            raise

    def _begun(
        self, before: Position, ids: dict[str, str], latest: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return where each partition of the next batch begins; report lost records, or raise `DataLossError`."""
        for topic in sorted({topic for topic, _ in before.offsets}):
            if topic not in ids:
                self._lost(
                    f"topic {topic} is gone; the stream had read it up to {_offsets_text(before, topic)}",
                    "failOnDataLoss=false continues with the other topics",
                )
            elif topic in before.ids and before.ids[topic] != ids[topic]:
                self._lost(
                    f"topic {topic} was deleted and recreated: its id was {before.ids[topic]} and is {ids[topic]}, and "
                    f"the stream had read the old one up to {_offsets_text(before, topic)}",
                    "start with a new checkpoint, or let failOnDataLoss=false read the new topic from its beginning",
                )
        begun: dict[TopicPartition, int] = {}
        for partition in latest:
            recreated = partition.topic in before.ids and before.ids[partition.topic] != ids.get(partition.topic)
            begun[partition] = 0 if recreated else before.offsets.get(partition, 0)
        # Log start offsets matter only where there is something to read: an idle trigger does not request them.
        moved: dict[str, list[int]] = {}
        for partition, end in latest.items():
            if begun[partition] != end:
                moved.setdefault(partition.topic, []).append(partition.partition)
        earliest = list_all(self._client, moved, EARLIEST, committed=self._plan.settings.committed)
        for partition, first in earliest.items():
            position, end = begun[partition], latest[partition]
            if position < first or position > end:
                known_as = str(partition) if partition in before.offsets else f"new partition {partition}"
                self._lost(
                    f"{known_as} has offsets {first} to {end}, and the stream is at {position}: records are gone",
                    "failOnDataLoss=false continues with what is there",
                )
                begun[partition] = min(max(position, first), end)
        return begun

    def _lost(self, what: str, way_out: str) -> None:
        report_loss("ottla", what, way_out, fail=self._plan.settings.fail_on_data_loss)

    def _too_few(self, begun: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> bool:
        """Return whether to wait for minOffsetsPerTrigger, at most for maxTriggerDelay since the last batch.

        As in Spark's own source, the first batch does not wait.
        """
        fewest = self._plan.fewest_offsets
        if not fewest:
            return False
        now = time.monotonic()
        waiting = sum(max(end - begun.get(partition, 0), 0) for partition, end in ends.items())
        late = self._last_trigger is None or now - self._last_trigger >= self._plan.longest_delay
        if waiting < fewest and not late:
            return True
        self._last_trigger = now
        return False

    def _commit_group(self, done: Position) -> None:
        group = self._plan.group
        if group is None:
            return
        changed = {
            partition: offset for partition, offset in done.offsets.items() if self._committed.get(partition) != offset
        }
        if not changed:
            return
        try:
            with reachable(self._plan.settings.bootstrap):
                commit_offsets(
                    self._client, group, {(topic, number): offset for (topic, number), offset in changed.items()}
                )
        except KafkaError as error:
            raise OptionError(
                f"groupId: the offsets of group {group} cannot be committed: {error}; a stream needs a group "
                f"without members"
            ) from error
        self._committed.update(changed)


def _ids(topics: dict[str, TopicInfo]) -> dict[str, str]:
    return {name: str(info.id) for name, info in topics.items()}


def _values(offsets: dict[str, dict[int, int]]) -> set[int]:
    return {offset for numbers in offsets.values() for offset in numbers.values()}


def _offsets_text(position: Position, topic: str) -> str:
    offsets = [f"{number}: {offset}" for (name, number), offset in sorted(position.offsets.items()) if name == topic]
    return "{" + ", ".join(offsets) + "}"


def _limited(begun: dict[TopicPartition, int], ends: dict[TopicPartition, int], most: int) -> dict[TopicPartition, int]:
    """Limit the offsets of a batch, in proportion to what each partition has."""
    waiting = {partition: max(end - begun.get(partition, 0), 0) for partition, end in ends.items()}
    total = sum(waiting.values())
    if not most or total <= most:
        return {partition: max(end, begun.get(partition, 0)) for partition, end in ends.items()}
    limited = {}
    for partition, count in waiting.items():
        # A partition with few records gets at least one, as in Spark's own source, or it would never be read.
        share = most * count // total or (1 if count else 0)
        limited[partition] = begun.get(partition, 0) + min(share, count)
    return limited
