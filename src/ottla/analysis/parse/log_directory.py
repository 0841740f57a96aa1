"""Read a Kafka log directory as events: group and transaction records, markers, open transactions, appends.

The broker may be running or killed: an incomplete batch at the end is ignored.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from ottla.analysis.event import Event
from ottla.analysis.parse.kafka_records import FORMAT, group_events, transaction_event
from ottla.records.control import ControlType
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import iter_records
from ottla.storage.check.scan import read_folder, read_metadata_facts, scan_batches
from ottla.storage.errors import CorruptLogError
from ottla.storage.log.producer_state import read_marker
from ottla.storage.names import parse_partition_dir
from ottla.world.disk_real import RealDisk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ottla.records.batch import BatchHeader
    from ottla.storage.names import TopicPartition
    from ottla.world.disk import Disk

GROUPS: Final = "__consumer_offsets"
TRANSACTIONS: Final = "__transaction_state"


def is_log_directory(path: str) -> bool:
    """Return whether a folder is a log directory of a broker."""
    if os.path.exists(os.path.join(path, "meta.properties")):
        return True
    return any(
        parse_partition_dir(name) is not None and os.path.isdir(os.path.join(path, name)) for name in os.listdir(path)
    )


def partition_folders(path: str, topics: Collection[str] | None = None) -> list[str]:
    """Return the partition folders of a log directory, of these topics or of all, without deleted ones."""
    folders = []
    for name in sorted(os.listdir(path)):
        named = parse_partition_dir(name)
        if named is None or (topics is not None and named.topic_partition.topic not in topics):
            continue
        if not named.mark and os.path.isdir(os.path.join(path, name)):
            folders.append(os.path.join(path, name))
    return folders


def topic_names(path: str) -> dict[str, str]:
    """Return the topic names by id, as the metadata log of the directory holds them."""
    facts = read_metadata_facts(RealDisk(), path)
    return {str(topic_id): name for name, topic_id in facts.topic_ids.items()}


def folder_events(
    folder: str, names: dict[str, str], disk: Disk | None = None, *, appends: bool = False
) -> Iterator[Event]:
    """Yield the events of a partition folder: records of internal topics, markers, open transactions, and appends."""
    disk = disk or RealDisk()
    listed = read_folder(disk, folder)
    transactions = _OpenTransactions(folder, listed.partition)
    appends_per_second = _Appends(folder, listed.partition)
    commits = _TransactionalCommits()
    for segment in listed.segments:
        try:
            for header, data in scan_batches(disk, segment.path(), segment.size):
                if appends:
                    yield from appends_per_second.add(header)
                if listed.partition.topic in (GROUPS, TRANSACTIONS) and not header.is_control:
                    for record in iter_records(data, header._replace(position=0)):
                        if listed.partition.topic == GROUPS:
                            yield from commits.hold(header, group_events(record, segment.path(), names))
                        else:
                            yield transaction_event(record, segment.path())
                if header.is_control and header.producer_id >= 0:
                    marker = read_marker(data, header._replace(position=0))
                    if marker is not None:
                        yield from commits.end(header, marker[0].control_type)
                        yield transactions.marker(header, marker[0].control_type, segment.path())
                elif header.is_transactional:
                    transactions.batch(header)
        except (CorruptLogError, InvalidRecords, FileNotFoundError) as error:
            yield Event(
                None, "unparsed", format=FORMAT, file=segment.path(), text=f"{segment.path()} ends early: {error}"
            )
    yield from appends_per_second.flush()
    yield from commits.open()
    yield from transactions.open()


class _TransactionalCommits:
    """Hold back offsets committed within a transaction until its marker, and yield them with its outcome."""

    def __init__(self) -> None:
        self._held: dict[int, list[Event]] = {}

    def hold(self, header: BatchHeader, events: Iterator[Event]) -> Iterator[Event]:
        """Hold back transactional commits and yield the other events."""
        for event in events:
            if header.is_transactional and event.event == "commit":
                mine = event._replace(producer_id=header.producer_id, producer_epoch=header.producer_epoch)
                self._held.setdefault(header.producer_id, []).append(mine)
            else:
                yield event

    def end(self, header: BatchHeader, kind: ControlType) -> Iterator[Event]:
        state = "commit" if kind is ControlType.COMMIT else "abort"
        for event in self._held.pop(header.producer_id, []):
            took = max(0, header.max_timestamp - (event.time_ms or 0))
            yield event._replace(state=state, duration_ms=took)

    def open(self) -> Iterator[Event]:
        """Yield the offsets of transactions without a marker."""
        for events in self._held.values():
            yield from (event._replace(state="open") for event in events)


class _Appends:
    """Add up the batches of each second into one `append` event."""

    def __init__(self, folder: str, partition: TopicPartition) -> None:
        self._folder = folder
        self._partition = partition
        self._second = -1
        self._records = self._bytes = self._end = 0
        self._latest_ms = -1

    def add(self, header: BatchHeader) -> Iterator[Event]:
        """Add a batch; yield the second before when a new one begins."""
        self._latest_ms = max(self._latest_ms, header.max_timestamp)  # timestamps of producers may go back
        if self._latest_ms // 1000 != self._second:
            yield from self.flush()
            self._second = self._latest_ms // 1000
        self._end = header.next_offset
        self._bytes += header.size
        self._records += 0 if header.is_control else header.record_count

    def flush(self) -> Iterator[Event]:
        """Yield the current second, if it has batches."""
        if self._bytes:
            yield Event(
                self._second * 1000,
                "append",
                format=FORMAT,
                file=self._folder,
                position=self._end,
                topic=self._partition.topic,
                partition=self._partition.partition,
                offset=self._end,
                text=f"{self._records} {self._bytes}",
            )
        self._records = self._bytes = 0


class _OpenTransactions:
    """Follow which transactions are open in a partition while its log is read."""

    def __init__(self, folder: str, partition: TopicPartition) -> None:
        self._folder = folder
        self._partition = partition
        self._first: dict[int, tuple[int, int, int]] = {}
        self._last_ms = -1

    def batch(self, header: BatchHeader) -> None:
        producer, epoch = header.producer_id, header.producer_epoch
        time_ms, offset = header.max_timestamp, header.base_offset
        self._last_ms = max(self._last_ms, time_ms)
        self._first.setdefault(producer, (offset, time_ms, epoch))

    def _event(self, name: str, time_ms: int, producer: int, epoch: int, offset: int) -> Event:
        return Event(
            time_ms,
            name,
            format=FORMAT,
            file=self._folder,
            position=offset,
            topic=self._partition.topic,
            partition=self._partition.partition,
            offset=offset,
            producer_id=producer,
            producer_epoch=epoch,
        )

    def marker(self, header: BatchHeader, kind: ControlType, path: str) -> Event:
        producer, epoch = header.producer_id, header.producer_epoch
        time_ms, offset = header.max_timestamp, header.base_offset
        self._last_ms = max(self._last_ms, time_ms)
        first, began, _ = self._first.pop(producer, (offset, time_ms, epoch))
        return self._event("txn.marker", time_ms, producer, epoch, first)._replace(
            state="commit" if kind is ControlType.COMMIT else "abort",
            duration_ms=max(0, time_ms - began),
            file=path,
            position=offset,
        )

    def open(self) -> Iterator[Event]:
        """Yield the transactions open at the end of the log: the first one holds back the last stable offset."""
        by_offset = sorted((offset, producer) for producer, (offset, _, _) in self._first.items())
        for index, (offset, producer) in enumerate(by_offset):
            _, began, epoch = self._first[producer]
            text = "holds the last stable offset" if index == 0 else "is behind another open transaction"
            yield self._event("txn.open", began, producer, epoch, offset)._replace(
                duration_ms=max(0, self._last_ms - began), text=text
            )
