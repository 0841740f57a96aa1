"""The transaction coordinator of one node (Kafka's TransactionCoordinator).

An operation finds the transactional id, prepares a transition, appends its record and replays it. It returns a Pending
of its result, which completes when the record is durable. Errors are part of the result.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ottla.cluster.coordinator_errors import APPEND_ERRORS, unreadable
from ottla.events import NO_EVENTS, partition_map
from ottla.pending import Pending, completed_with
from ottla.pieces import run_to_end
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from ottla.transactions import listing
from ottla.transactions.end import EndTxn, prepare_end
from ottla.transactions.environment import LogRecord, TransactionConfig, finalized_version
from ottla.transactions.expiry import expired_batches, timed_out
from ottla.transactions.initialize import prepare_init
from ottla.transactions.markers import RETRY_BACKOFF_S, Markers
from ottla.transactions.metadata import (
    NEVER_TIMES_OUT,
    Transaction,
    add_partitions,
    complete,
    fence_producer_epoch,
    new_transaction,
)
from ottla.transactions.producer_ids import ProducerIds
from ottla.transactions.records import encode_key, encode_value
from ottla.transactions.shards import LoadedShard, Shard, Shards
from ottla.transactions.states import PREPARED, TransactionState, TransactionVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from ottla.cluster.coordinator_errors import UnreadableRecord
    from ottla.events import NodeEvents
    from ottla.protocol.messages.k65_describe_transactions import TransactionState as DescribedTransaction
    from ottla.protocol.messages.k66_list_transactions import ListTransactionsRequest, ListTransactionsResponse
    from ottla.records.iterate import Record
    from ottla.storage.names import TopicPartition
    from ottla.transactions.environment import ClusterView, MarkerSender, ProducerIdSource, StateLog
    from ottla.transactions.initialize import ProducerIdAndEpoch
    from ottla.transactions.markers import Completion
    from ottla.transactions.metadata import TransactionRecord, Transition
    from ottla.world.clock import Clock, Timer

REPLAY_WORK = 15
"""Units of work (`ottla.pieces`) of one replayed record."""

_APPEND_ERRORS = {**APPEND_ERRORS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE}


class ProducerResult(NamedTuple):
    """The result of InitProducerId and EndTxn."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class TransactionCoordinator:
    """Coordinates the transactional ids of the partitions of `__transaction_state` that this node leads."""

    def __init__(
        self,
        clock: Clock,
        log: StateLog,
        producer_id_source: ProducerIdSource,
        marker_sender: MarkerSender,
        cluster: ClusterView,
        config: TransactionConfig | None = None,
        events: NodeEvents = NO_EVENTS,
    ) -> None:
        self.config = config or TransactionConfig()
        self._events = events
        self.producer_ids = ProducerIds(producer_id_source, clock)
        self._clock = clock
        self._log = log
        self._cluster = cluster
        self._shards = Shards(cluster.transaction_partition_count)
        self._markers = Markers(clock, marker_sender, cluster, self._coordinates, self._write_completion)
        self._timers: list[Timer] = []
        self._active = False

    # Start, stop and leadership

    def start(self) -> None:
        """Serve requests, and schedule the checks for timed-out transactions and expired transactional ids."""
        self._active = True
        config = self.config
        self._every(config.abort_timed_out_transaction_cleanup_interval_ms, self.abort_timed_out_transactions)
        self._every(config.remove_expired_transaction_cleanup_interval_ms, self.remove_expired_transactional_ids)

    def stop(self) -> None:
        """Cancel all timers and unload all partitions."""
        self._active = False
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for shard in self._shards:
            self.unload(shard.partition)

    def begin_load(self, partition: int, coordinator_epoch: int) -> None:
        """Answer COORDINATOR_LOAD_IN_PROGRESS for a partition that this node now leads, until `load`."""
        self._cancel_markers(partition)
        self._shards.begin_load(partition, coordinator_epoch)

    def load(
        self, partition: int, coordinator_epoch: int, records: Iterable[Record | UnreadableRecord]
    ) -> list[UnreadableRecord]:
        """Replay a partition's records and resume writing the markers of prepared transactions.

        Return the records that cannot be loaded. If there are any, the partition is not loaded and its transactional
        ids answer NOT_COORDINATOR. (Kafka's TransactionStateManager serves the state before such a record, which may
        hand out a producer epoch twice.)
        """
        return run_to_end(self.load_in_pieces(partition, coordinator_epoch, records))

    def load_in_pieces(
        self, partition: int, coordinator_epoch: int, records: Iterable[Record | UnreadableRecord]
    ) -> Generator[int, None, list[UnreadableRecord]]:
        """Load a partition as `load` does; yield the units of work done, after the first of which it is loading.

        The caller closes the generator if it unloads the partition meanwhile.
        """
        if not self._shards.may_load(partition, coordinator_epoch):
            return []
        self.begin_load(partition, coordinator_epoch)
        yield 0
        loaded = LoadedShard(Shard(partition, coordinator_epoch))
        for record in records:
            loaded.replay(record)
            yield REPLAY_WORK
        completions: list[tuple[Transaction, Transition]] = []
        for transaction in loaded.shard.transactions.values():
            if transaction.state in PREPARED:
                try:
                    completions.append((transaction, self._prepare_completion(transaction)))
                except Exception as error:  # values that no coordinator writes, in a record that could be replayed
                    loaded.unreadable.append(unreadable(loaded.offsets[transaction.transactional_id], error))
        if loaded.unreadable:
            self._shards.unload(partition)
            return sorted(loaded.unreadable)
        self._shards.activate(loaded.shard)
        for transaction, completion in completions:
            self._markers.begin(loaded.shard, transaction, completion)
        return []

    def unload(self, partition: int) -> None:
        """Unload a partition that this node no longer leads; its transactional ids answer NOT_COORDINATOR."""
        self._cancel_markers(partition)
        self._shards.unload(partition)

    def partition_for(self, transactional_id: str) -> int:
        """Return the partition of `__transaction_state` that a transactional id belongs to."""
        return self._shards.partition_for(transactional_id)

    # Producers

    def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int = 0,
        expected: ProducerIdAndEpoch | None = None,
        *,
        enable_two_phase_commit: bool = False,
        keep_prepared: bool = False,
    ) -> Pending[ProducerResult]:
        """Return a producer id and epoch; fence the transactional id's earlier producer and abort its transaction."""
        try:
            if transactional_id is None:
                return completed_with(ProducerResult(ErrorCode.NONE, self.producer_ids.generate(), 0))
            if not transactional_id:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            if enable_two_phase_commit and not self.config.two_phase_commit_enable:
                raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            if keep_prepared:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
            if enable_two_phase_commit:
                timeout_ms = NEVER_TIMES_OUT
            elif not 0 < timeout_ms <= self.config.transaction_max_timeout_ms:
                raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
            now_ms = self._clock.now_ms()
            shard, transaction = self._shards.find(transactional_id)
            if transaction is None:
                transaction = new_transaction(transactional_id, self.producer_ids.generate(), timeout_ms, now_ms)
                shard.transactions[transactional_id] = transaction
            transition = prepare_init(transaction, timeout_ms, expected, self.producer_ids.generate, now_ms)
            if transition is None:
                return self._fence(shard, transaction).map(_concurrent_transactions)
        except KafkaError as error:
            return completed_with(ProducerResult(error.code))
        record = transition.record
        response: Pending[ProducerResult] = Pending()
        self._write(
            shard,
            transaction,
            transition,
            lambda error: response.complete(
                ProducerResult(error) if error else ProducerResult(error, record.producer_id, record.producer_epoch)
            ),
        )
        return response

    # Partitions

    def add_partitions(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        client_version: TransactionVersion,
    ) -> Pending[ErrorCode]:
        """Add partitions to the producer's transaction, and begin one if none is ongoing."""
        added = dict.fromkeys(partitions)
        try:
            shard, transaction = self._find_known(transactional_id)
            if transaction.pending_state is not None:
                raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
            _check_producer(transaction, producer_id, producer_epoch)
            if transaction.state is TransactionState.ONGOING and added.keys() <= transaction.record.partitions.keys():
                return completed_with(ErrorCode.NONE)
            transition = add_partitions(transaction, added, client_version, self._clock.now_ms())
        except KafkaError as error:
            return completed_with(error.code)
        response: Pending[ErrorCode] = Pending()
        self._write(shard, transaction, transition, response.complete)
        return response

    def verify_partitions(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Return an error for each partition: NONE if it is part of the producer's transaction (KIP-890, part 1)."""
        requested = dict.fromkeys(partitions)
        try:
            _, transaction = self._find_known(transactional_id)
            _check_producer(transaction, producer_id, producer_epoch)
        except KafkaError as error:
            return dict.fromkeys(requested, error.code)
        added = transaction.record.partitions
        return {
            partition: ErrorCode.NONE if partition in added else ErrorCode.TRANSACTION_ABORTABLE
            for partition in requested
        }

    # Ending transactions

    def end_transaction(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        committed: bool,
        client_version: TransactionVersion,
    ) -> Pending[ProducerResult]:
        """Commit or abort the producer's transaction; complete once the decision is durable, before the markers are."""
        try:
            shard, transaction = self._find_known(transactional_id)
        except KafkaError as error:
            return completed_with(ProducerResult(error.code))
        return self._end(shard, transaction, EndTxn(producer_id, producer_epoch, committed, client_version))

    def abort_timed_out_transactions(self) -> None:
        """Abort transactions that are ongoing for longer than their timeout, and fence their producers."""
        now_ms = self._clock.now_ms()
        for shard in self._shards:
            for transaction in timed_out(shard, now_ms):
                self._time_out(shard, transaction)

    def time_out(self, transactional_id: str) -> bool:
        """Abort an ongoing transaction as if its timeout had passed; return False if there is none here."""
        for shard in self._shards:
            transaction = shard.transactions.get(transactional_id)
            if transaction is not None and transaction.state is TransactionState.ONGOING:
                self._time_out(shard, transaction)
                return True
        return False

    def _time_out(self, shard: Shard, transaction: Transaction) -> None:
        record = transaction.record
        self._events.emit(
            "timeout",
            what="transaction",
            transactional_id=transaction.transactional_id,
            producer_id=record.producer_id,
            producer_epoch=record.producer_epoch,
            timeout_ms=record.timeout_ms,
        )
        self._fence(shard, transaction)

    def remove_expired_transactional_ids(self) -> None:
        """Write tombstones for transactional ids without activity for transactional.id.expiration.ms."""
        now_ms = self._clock.now_ms()
        for shard in self._shards:
            for batch in expired_batches(shard, now_ms, self.config.transactional_id_expiration_ms):
                for transaction in batch:
                    transaction.pending_state = TransactionState.DEAD
                records = [LogRecord(encode_key(expired.transactional_id), None, now_ms) for expired in batch]
                written = self._log.write(shard.partition, records)
                written.on_complete(partial(self._tombstones_written, shard, batch))

    # Describing and listing

    def describe(self, transactional_id: str) -> DescribedTransaction:
        """Return a transactional id's state for DescribeTransactions."""
        if not self._active:
            return listing.not_described(transactional_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not transactional_id:
            return listing.not_described(transactional_id, ErrorCode.INVALID_REQUEST)
        try:
            _, transaction = self._shards.find(transactional_id)
        except KafkaError as error:
            return listing.not_described(transactional_id, error.code)
        if transaction is None:
            return listing.not_described(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return listing.describe(transaction, self._markers.unmarked(transaction))

    def list_transactions(self, request: ListTransactionsRequest) -> ListTransactionsResponse:
        """Return the transactions that match the request's filters."""
        if not self._active:
            return listing.not_listed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._shards.loading:
            return listing.not_listed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return listing.list_transactions(self.transactions(), request, self._clock.now_ms())

    def transactions(self) -> list[Transaction]:
        """Return the state of all transactional ids that this node coordinates."""
        return [transaction for shard in self._shards for transaction in shard.transactions.values()]

    # Transitions

    def _find_known(self, transactional_id: str | None) -> tuple[Shard, Transaction]:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        shard, transaction = self._shards.find(transactional_id)
        if transaction is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return shard, transaction

    def _fence(self, shard: Shard, transaction: Transaction) -> Pending[ProducerResult]:
        """Fence the current (zombie) producer: abort its transaction with the next epoch."""
        end = EndTxn(
            transaction.producer_id,
            fence_producer_epoch(transaction),
            committed=False,
            client_version=finalized_version(self._cluster),
            fences=True,
        )
        return self._end(shard, transaction, end)

    def _end(self, shard: Shard, transaction: Transaction, end: EndTxn) -> Pending[ProducerResult]:
        bumps = end.client_version.supports_epoch_bump
        try:
            transition = prepare_end(transaction, end, self.producer_ids.generate, self._clock.now_ms())
        except KafkaError as error:
            return completed_with(ProducerResult(error.code))
        if transition is None:
            if not bumps:
                return completed_with(ProducerResult(ErrorCode.NONE))
            return completed_with(ProducerResult(ErrorCode.NONE, transaction.producer_id, transaction.producer_epoch))
        response: Pending[ProducerResult] = Pending()

        def decided(error: ErrorCode) -> None:
            if error:
                response.complete(ProducerResult(error))
                return
            completion = self._prepare_completion(transaction)
            if bumps:
                after = completion.record
                response.complete(ProducerResult(error, after.producer_id, after.producer_epoch))
            else:
                response.complete(ProducerResult(error))
            self._markers.begin(shard, transaction, completion)

        self._write(shard, transaction, transition, decided)
        return response

    def _prepare_completion(self, transaction: Transaction) -> Transition:
        """Prepare the transition that follows once all markers are written; until then nothing else may change."""
        transition = complete(transaction, self._clock.now_ms())
        transaction.pending_state = transition.record.state
        return transition

    def _write_completion(self, completion: Completion) -> None:
        def completed(error: ErrorCode) -> None:
            if error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                self._clock.call_later(RETRY_BACKOFF_S, self._write_completion, completion)

        if self._coordinates(completion.shard):
            self._write(completion.shard, completion.transaction, completion.transition, completed)

    def _write(
        self, shard: Shard, transaction: Transaction, transition: Transition, done: Callable[[ErrorCode], None]
    ) -> None:
        """Append a transition's record and replay it when it is durable; until then the id accepts no other change."""
        transaction.pending_state = transition.record.state
        record = LogRecord(
            encode_key(transaction.transactional_id),
            encode_value(transition.record, finalized_version(self._cluster)),
            self._clock.now_ms(),
        )
        written = self._log.write(shard.partition, [record])
        written.on_complete(partial(self._written, shard, transaction, transition, done))

    def _written(
        self,
        shard: Shard,
        transaction: Transaction,
        transition: Transition,
        done: Callable[[ErrorCode], None],
        error: ErrorCode,
    ) -> None:
        error = _APPEND_ERRORS.get(error, error) or self._shards.check_current(shard)
        if error is ErrorCode.NONE:
            _emit_transition(self._events, transaction, transition.record)
            shard.replay(transaction.transactional_id, transition.record)
            transaction.last_producer_epoch = transition.last_producer_epoch
            transaction.fence_epoch = None
            transaction.pending_state = None
        elif error is not ErrorCode.COORDINATOR_NOT_AVAILABLE or transaction.state not in PREPARED:
            transaction.pending_state = None  # a completion that is retried keeps its pending state
        done(error)

    def _tombstones_written(self, shard: Shard, batch: list[Transaction], error: ErrorCode) -> None:
        current = not error and self._coordinates(shard)
        for transaction in batch:
            if current:
                shard.replay(transaction.transactional_id, None)
            else:
                transaction.pending_state = None

    def _coordinates(self, shard: Shard) -> bool:
        return self._shards.check_current(shard) is ErrorCode.NONE

    def _cancel_markers(self, partition: int) -> None:
        for shard in self._shards:
            if shard.partition == partition:
                self._markers.cancel(shard)

    def _every(self, interval_ms: int, action: Callable[[], None]) -> None:
        position = len(self._timers)

        def run() -> None:
            self._timers[position] = self._clock.call_later(interval_ms / 1000, run)
            action()

        self._timers.append(self._clock.call_later(interval_ms / 1000, run))


def _emit_transition(events: NodeEvents, transaction: Transaction, record: TransactionRecord) -> None:
    if not events.enabled:
        return
    before = transaction.record
    events.emit(
        "transaction.state",
        transactional_id=transaction.transactional_id,
        from_=before.state.label,
        to=record.state.label,
        producer_id=record.producer_id,
        producer_epoch=record.producer_epoch,
        partitions=partition_map((record if record.partitions else before).partitions),
        timeout_ms=record.timeout_ms,
    )


def _check_producer(transaction: Transaction, producer_id: int, producer_epoch: int) -> None:
    if transaction.producer_id != producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if transaction.producer_epoch != producer_epoch:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if transaction.state in PREPARED:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)


def _concurrent_transactions(fenced: ProducerResult) -> ProducerResult:
    """Have the client retry InitProducerId until its ongoing transaction is aborted."""
    return ProducerResult(fenced.error or ErrorCode.CONCURRENT_TRANSACTIONS)
