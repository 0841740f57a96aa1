"""Streams of the format "ottla": the end of each micro-batch, topics that change meanwhile, group commits.

Runs in one Python process beside the driver for as long as its query; `read` reads the rows.
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
    chosen_partitions,
    find_topics,
    resolve,
    split_ranges,
)
from ottla.spark.network.read import read_range
from ottla.spark.options import OptionError
from ottla.spark.worker import settle
from ottla.storage.names import TopicPartition

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
    """The offset of a stream: the next offset of each partition, and the ids of the topics they belong to.

    Its JSON is that of Spark's own source, {"orders": {"0": 23}}, with the ids under an empty topic name; checkpoints
    of Spark's own source can be read.
    """

    offsets: dict[TopicPartition, int]
    ids: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Position:
        """Parse what Spark stored."""
        offsets = {
            TopicPartition(topic, int(number)): int(offset)
            for topic, numbers in given.items()
            if topic != _IDS
            for number, offset in numbers.items()
        }
        return cls(offsets, dict(given.get(_IDS, {})))

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return what Spark must store, in a stable order."""
        offsets: dict[str, dict[str, Any]] = {}
        for (topic, number), offset in sorted(self.offsets.items()):
            offsets.setdefault(topic, {})[str(number)] = offset
        return offsets | {_IDS: dict(sorted(self.ids.items()))} if self.ids else offsets


class NetworkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plan micro-batches."""

    def __init__(self, plan: NetworkPlan) -> None:
        self._plan = plan
        self._open: Client | None = None
        self._target: Position | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._newest: Position | None = None
        self._waiting_since: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what an executor needs: the plan alone."""
        return {"_plan": self._plan}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_plan"])  # type: ignore[misc]

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query begins."""
        plan = self._plan
        with reachable(plan.settings.bootstrap):
            ids, bounds = self._current_offsets()
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
        """Return the limit of maxOffsetsPerTrigger."""
        return ReadMaxRows(self._plan.most_offsets) if self._plan.most_offsets else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end offsets: the query reads up to them, in as many batches as its limit requires."""
        with reachable(self._plan.settings.bootstrap):
            ids, bounds = self._current_offsets()
        self._target = Position(bounds.latest, ids)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where the next micro-batch ends."""
        before = Position.parse(start)
        # Spark calls this only when everything before `start` is processed, which is earlier than commit().
        self._commit_group(before)
        with reachable(self._plan.settings.bootstrap):
            # Retry: a broker that restarts must not end the query.
            ids, bounds = self._client.retrying(lambda: self._current_offsets(begun=True))
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
            ends,
            {topic: topic_id for topic, topic_id in ids.items() if any(partition.topic == topic for partition in ends)},
        ).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the newest offsets seen, for the query's progress."""
        return None if self._newest is None else self._newest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of one micro-batch: the same for the same offsets, whenever it runs."""
        before, after = Position.parse(start), Position.parse(end)
        ranges = []
        for (topic, number), last in sorted(after.offsets.items()):
            known = before.offsets.get(TopicPartition(topic, number))
            recreated = topic in before.ids and before.ids[topic] != after.ids.get(topic, before.ids[topic])
            first = 0 if known is None or recreated else known
            if first < last:
                ranges.append(OffsetRange(topic, after.ids.get(topic, ""), number, first, last))
        return [
            NetworkTask(offsets)
            for offsets in split_ranges(ranges, least_tasks=self._plan.least_tasks, largest=self._plan.largest_task)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        assert isinstance(partition, NetworkTask)
        settle()
        if partition.range is not None:
            yield from read_range(partition.range, self._plan.settings)

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

    def _current_offsets(self, *, begun: bool = False) -> tuple[dict[str, str], Bounds]:
        """Return the ids of the topics and the offsets of their partitions.

        Before a stream begins, a named topic must exist; later, a missing topic is data loss.
        """
        plan = self._plan
        topics = find_topics(self._client, plan.selection, required=not begun)
        partitions = chosen_partitions(topics, plan.selection)
        bounds = Bounds.ask(self._client, partitions, committed=plan.settings.committed)
        return {name: str(info.id) for name, info in topics.items()}, bounds

    def _begun(self, before: Position, ids: dict[str, str], bounds: Bounds) -> dict[TopicPartition, int]:
        """Return where each partition of the next batch begins; report lost records, or raise `DataLossError`."""
        begun: dict[TopicPartition, int] = {}
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
        for partition, end in bounds.latest.items():
            topic = partition[0]
            recreated = topic in before.ids and before.ids[topic] != ids.get(topic)
            known = before.offsets.get(partition)
            first = bounds.earliest[partition]
            position = 0 if known is None or recreated else known
            if position < first or position > end:
                known_as = f"new partition {topic}-{partition[1]}" if known is None else f"{topic}-{partition[1]}"
                self._lost(
                    f"{known_as} has offsets {first} to {end}, and the stream is at {position}: records are gone",
                    "failOnDataLoss=false continues with what is there",
                )
                position = min(max(position, first), end)
            begun[partition] = position
        return begun

    def _lost(self, what: str, way_out: str) -> None:
        if self._plan.settings.fail_on_data_loss:
            raise DataLossError(f"{what}; {way_out}")
        warn("ottla", what)

    def _too_few(self, begun: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> bool:
        """Return whether to wait for minOffsetsPerTrigger, at most for maxTriggerDelay."""
        fewest = self._plan.fewest_offsets
        waiting = sum(max(end - begun.get(partition, 0), 0) for partition, end in ends.items())
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
    left = most
    for partition, count in sorted(waiting.items()):
        # At least one offset of each partition that has any, or a small partition would never be read.
        share = min(max(most * count // total, 1 if count else 0), count, left)
        left -= share
        limited[partition] = begun.get(partition, 0) + share
    return limited
