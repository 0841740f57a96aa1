"""`ottla txn`: list and describe transactions, find hanging ones and abort them (KIP-664)."""

from typing import Annotated, Any

import typer

from ottla.cli.options.commands import add_command, add_group
from ottla.cli.options.completion import complete_topics
from ottla.cli.options.connect import AsJson, ClusterOptions
from ottla.cli.terminal.output import NOT_FOUND, echo, fail, print_json, print_result, print_rows, print_table, usage
from ottla.client import Client
from ottla.client.transactions import abort_on_partition, describe_producers, describe_transaction, list_transactions
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.quantities import format_duration, format_time, now_ms

DEFAULT_TIMEOUT_MINUTES = 15.0
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topics)]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    txn = add_group(app, "txn")
    add_command(txn, "list", list_, "ottla txn list", "ottla txn list --state Ongoing --longer-than 60")
    add_command(txn, "describe", describe, "ottla txn describe billing-1")
    add_command(txn, "producers", producers, "ottla txn producers orders -p 0")
    add_command(txn, "hanging", hanging, "ottla txn hanging", "ottla txn hanging --topic orders --older-than 5 --json")
    add_command(
        txn,
        "abort",
        abort,
        "ottla txn abort orders 0 --start-offset 1234",
        "ottla txn abort orders 0 --producer-id 7 --producer-epoch 0",
    )


def list_(
    *,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="List only transactions in this state; repeatable."),
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option("--producer-id", metavar="ID", help="List only this producer id; repeatable."),
    ] = None,
    longer_than: Annotated[
        float | None,
        typer.Option(
            "--longer-than", metavar="SECONDS", min=0, help="List only transactions that have run for longer."
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="REGEX", help="List only transactional ids that match (RE2 syntax)."),
    ] = None,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """List transactional ids and the state of their transactions."""
    with cluster.connect() as client:
        listed = list_transactions(
            client,
            state or (),
            producer_id or (),
            longer_than_ms=-1 if longer_than is None else round(longer_than * 1000),
            pattern=pattern,
        )
    rows = [
        {
            "transactional_id": transaction.transactional_id,
            "state": transaction.transaction_state,
            "producer_id": transaction.producer_id,
            "coordinator": node,
        }
        for node, transaction in listed
    ]
    print_rows(
        as_json,
        rows,
        ("TRANSACTIONAL ID", "STATE", "PRODUCER ID", "COORDINATOR"),
        lambda row: tuple(row.values()),
        right=("PRODUCER ID", "COORDINATOR"),
    )


def describe(
    names: Annotated[list[str], typer.Argument(metavar="TRANSACTIONAL_ID...", help="Transactional ids to describe.")],
    *,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Show the state and the partitions of transactions."""
    with cluster.connect() as client:
        for name in names:
            node, state = describe_transaction(client, name)
            partitions = sorted((topic.topic, index) for topic in state.topics for index in topic.partitions)
            started = state.transaction_start_time_ms
            row: dict[str, Any] = {
                "transactional_id": name,
                "state": state.transaction_state,
                "coordinator": node,
                "producer_id": state.producer_id,
                "producer_epoch": state.producer_epoch,
                "timeout_ms": state.transaction_timeout_ms,
                "started": format_time(started) if started > 0 else None,
                "running_ms": max(now_ms() - started, 0) if started > 0 else None,
                "partitions": [list(partition) for partition in partitions],
            }
            if as_json:
                print_json(row)
                continue
            since = f", since {row['started']}" if started > 0 else ""
            echo(
                f"{name}  {row['state']}{since}; producer {row['producer_id']} epoch {row['producer_epoch']}, "
                f"coordinator {node}, timeout {row['timeout_ms']} ms"
            )
            for topic, index in partitions:
                echo(f"  {topic}-{index}")


def producers(
    topic: Topic,
    *,
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition", "-p", metavar="N", help="Show only this partition; repeatable.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Show the producer ids that partition leaders remember."""
    rows = []
    with cluster.connect() as client:
        info = client.topics([topic])[0]
        for index, states in sorted(describe_producers(client, topic, partition or info.partitions).items()):
            rows += [
                {
                    "partition": index,
                    "producer_id": state.producer_id,
                    "producer_epoch": state.producer_epoch,
                    "coordinator_epoch": state.coordinator_epoch,
                    "last_sequence": state.last_sequence,
                    "last_time": format_time(state.last_timestamp),
                    "open_since_offset": None if state.current_txn_start_offset < 0 else state.current_txn_start_offset,
                }
                for state in states
            ]
    print_rows(
        as_json,
        rows,
        ("PARTITION", "PRODUCER ID", "EPOCH", "SEQUENCE", "LAST APPEND", "TXN START"),
        lambda row: (
            row["partition"],
            row["producer_id"],
            row["producer_epoch"],
            row["last_sequence"],
            row["last_time"],
            row["open_since_offset"],
        ),
        json_of=lambda row: {"topic": topic, **row},
        right=("PARTITION", "PRODUCER ID", "EPOCH", "SEQUENCE", "TXN START"),
    )


def hanging(
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="NAME", help="Look only at this topic; repeatable.", show_default=False),
    ] = None,
    older_than: Annotated[
        float,
        typer.Option(
            "--older-than",
            metavar="MINUTES",
            min=0,
            help="Skip younger transactions; use the brokers' transaction.max.timeout.ms.",
        ),
    ] = DEFAULT_TIMEOUT_MINUTES,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Find hanging transactions, which no coordinator will end.

    Such a transaction is open on a partition, but its coordinator does not know it or does not know the partition. It
    holds back the last stable offset, and so every read_committed consumer.
    """
    with cluster.connect() as client:
        rows = _hanging(client, topic, round(older_than * 60_000))
    if as_json:
        for row in rows:
            print_json(row)
        return
    if not rows:
        echo("no hanging transactions")
        return
    print_table(
        ("TOPIC", "PARTITION", "PRODUCER ID", "EPOCH", "TXN START", "IDLE", "TRANSACTIONAL ID"),
        [
            (
                row["topic"],
                row["partition"],
                row["producer_id"],
                row["producer_epoch"],
                row["start_offset"],
                format_duration(row["open_ms"]),
                row["transactional_id"],
            )
            for row in rows
        ],
        right=("PARTITION", "PRODUCER ID", "EPOCH", "TXN START", "IDLE"),
    )


def abort(
    topic: Topic,
    partition: Annotated[int, typer.Argument(metavar="PARTITION", help="Number of the partition.")],
    *,
    start_offset: Annotated[
        int | None,
        typer.Option(
            "--start-offset",
            metavar="OFFSET",
            help="Abort the transaction that starts here, as `ottla txn hanging` shows it.",
            show_default=False,
        ),
    ] = None,
    producer_id: Annotated[
        int | None,
        typer.Option(
            "--producer-id",
            metavar="ID",
            help="Abort this producer's transaction; requires --producer-epoch.",
            show_default=False,
        ),
    ] = None,
    producer_epoch: Annotated[
        int | None,
        typer.Option(
            "--producer-epoch",
            metavar="N",
            help="Write the marker with this epoch of --producer-id.",
            show_default=False,
        ),
    ] = None,
    coordinator_epoch: Annotated[
        int | None,
        typer.Option(
            "--coordinator-epoch",
            metavar="N",
            help="Write the marker with this epoch of the coordinator.",
            show_default="the producer state's, or 0",
        ),
    ] = None,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Abort a hanging transaction on one partition.

    Use it only for hanging transactions: a coordinator ends all others itself.
    """
    if (start_offset is None) == (producer_id is None):
        raise usage("txn abort: give --start-offset, or --producer-id with --producer-epoch")
    if (producer_id is None) != (producer_epoch is None):
        raise usage("txn abort: --producer-id and --producer-epoch are only used together")
    with cluster.connect() as client:
        client.topics([topic])
        if start_offset is not None:
            states = describe_producers(client, topic, [partition])[partition]
            state = next((state for state in states if state.current_txn_start_offset == start_offset), None)
            if state is None:
                raise fail(f"{topic}-{partition} has no open transaction at offset {start_offset}", code=NOT_FOUND)
            producer_id, producer_epoch = state.producer_id, state.producer_epoch
            coordinator_epoch = state.coordinator_epoch if coordinator_epoch is None else coordinator_epoch
        assert producer_id is not None
        assert producer_epoch is not None
        abort_on_partition(
            client,
            topic,
            partition,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=max(coordinator_epoch or 0, 0),
        )
    row = {"topic": topic, "partition": partition, "producer_id": producer_id, "aborted": True}
    print_result(as_json, row, f"aborted the transaction of producer {producer_id} on {topic}-{partition}")


def _hanging(client: Client, topics: list[str] | None, older_than_ms: int) -> list[dict[str, Any]]:
    """Return old open transactions that no coordinator knows, or knows without this partition."""
    oldest = now_ms() - older_than_ms
    suspects = [
        (topic.name, index, state)
        for topic in client.topics(topics or None)
        for index, states in describe_producers(client, topic.name, topic.partitions).items()
        for state in states
        if state.current_txn_start_offset >= 0 and state.last_timestamp <= oldest
    ]
    if not suspects:
        return []
    ids = sorted({state.producer_id for _, _, state in suspects})
    owners = {entry.producer_id: entry.transactional_id for _, entry in list_transactions(client, (), ids)}
    claimed: dict[int, set[tuple[str, int]]] = {}
    for producer_id, name in owners.items():
        try:
            _, transaction = describe_transaction(client, name)
        except KafkaError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            continue
        claimed[producer_id] = {(topic.topic, index) for topic in transaction.topics for index in topic.partitions}
    return [
        {
            "topic": name,
            "partition": index,
            "producer_id": state.producer_id,
            "producer_epoch": state.producer_epoch,
            "coordinator_epoch": state.coordinator_epoch,
            "start_offset": state.current_txn_start_offset,
            "last_time": format_time(state.last_timestamp),
            "open_ms": now_ms() - state.last_timestamp,
            "transactional_id": owners.get(state.producer_id),
        }
        for name, index, state in suspects
        if (name, index) not in claimed.get(state.producer_id, set())
    ]
