"""`ottla txn`: transactions listed, described, found where they hang, and ended (KIP-664)."""

import time
from typing import Annotated, Any

import typer

from ottla.cli.connect import (
    LOCAL,
    NOT_FOUND,
    SECONDS,
    AsJson,
    Bootstrap,
    Properties,
    PropertiesFile,
    Timeout,
    connected,
)
from ottla.cli.output import echo, examples, fail, print_json, print_rows, print_table, usage, when
from ottla.client import Client
from ottla.client.transactions import abort_on_partition, describe_producers, describe_transaction, list_transactions
from ottla.protocol.errors import ErrorCode, KafkaError

DEFAULT_TIMEOUT_MINUTES = 15.0


def register(app: typer.Typer) -> None:
    """Add the commands."""
    txn = typer.Typer(name="txn", help="Transactions of any Kafka cluster.", no_args_is_help=True)
    txn.command("list", epilog=examples("ottla txn list", "ottla txn list --state Ongoing --longer-than 60"))(list_)
    txn.command("describe", epilog=examples("ottla txn describe billing-1"))(describe)
    txn.command("producers", epilog=examples("ottla txn producers orders -p 0"))(producers)
    txn.command(
        "hanging", epilog=examples("ottla txn hanging", "ottla txn hanging --topic orders --older-than 5 --json")
    )(hanging)
    txn.command(
        "abort",
        epilog=examples(
            "ottla txn abort orders 0 --start-offset 1234",
            "ottla txn abort orders 0 --producer-id 7 --producer-epoch 0 --coordinator-epoch 0",
        ),
    )(abort)
    app.add_typer(txn)


def list_(
    state: Annotated[list[str] | None, typer.Option("--state", help="Only in this state; may be repeated.")] = None,
    producer_id: Annotated[
        list[int] | None, typer.Option("--producer-id", help="Only of this producer; may be repeated.")
    ] = None,
    longer_than: Annotated[
        float | None, typer.Option("--longer-than", metavar="SECONDS", help="Only those that run longer.")
    ] = None,
    pattern: Annotated[str | None, typer.Option("--pattern", help="Only transactional ids that match (re2).")] = None,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """List the transactional ids of all brokers."""
    with connected(bootstrap, properties, command_config, timeout) as client:
        found = list_transactions(
            client,
            state or (),
            producer_id or (),
            longer_than_ms=-1 if longer_than is None else round(longer_than * 1000),
            pattern=pattern,
        )
    rows = [
        {
            "transactional_id": each.transactional_id,
            "state": each.transaction_state,
            "producer_id": each.producer_id,
            "coordinator": node,
        }
        for node, each in found
    ]
    print_rows(
        as_json,
        rows,
        ("TRANSACTIONAL ID", "STATE", "PRODUCER ID", "COORDINATOR"),
        lambda row: tuple(row.values()),
        right=("PRODUCER ID", "COORDINATOR"),
    )


def describe(
    names: Annotated[list[str], typer.Argument(metavar="TRANSACTIONAL_ID...", help="The transactional ids.")],
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show the state of transactional ids and the partitions of their transactions."""
    with connected(bootstrap, properties, command_config, timeout) as client:
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
                "started": when(started) if started > 0 else None,
                "running_ms": max(_now() - started, 0) if started > 0 else None,
                "partitions": [list(each) for each in partitions],
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
    topic: Annotated[str, typer.Argument(help="The topic.")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", help="Only these; may be repeated.", show_default=False)
    ] = None,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show who produces to a topic with a producer id, as the leaders know it."""
    rows = []
    with connected(bootstrap, properties, command_config, timeout) as client:
        info = client.topics([topic])[0]
        for index, states in sorted(describe_producers(client, topic, partition or info.partitions).items()):
            rows += [
                {
                    "partition": index,
                    "producer_id": each.producer_id,
                    "producer_epoch": each.producer_epoch,
                    "coordinator_epoch": each.coordinator_epoch,
                    "last_sequence": each.last_sequence,
                    "last_time": when(each.last_timestamp),
                    "open_since_offset": each.current_txn_start_offset if each.current_txn_start_offset >= 0 else None,
                }
                for each in states
            ]
    print_rows(
        as_json,
        rows,
        ("PARTITION", "PRODUCER ID", "EPOCH", "COORDINATOR EPOCH", "SEQUENCE", "LAST", "OPEN SINCE OFFSET"),
        lambda row: tuple(row.values()),
        json_of=lambda row: {"topic": topic, **row},
        right=("PARTITION", "PRODUCER ID", "EPOCH", "COORDINATOR EPOCH", "SEQUENCE", "OPEN SINCE OFFSET"),
    )


def hanging(
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Only on this topic; may be repeated.", show_default=False)
    ] = None,
    older_than: Annotated[
        float,
        typer.Option("--older-than", metavar="MINUTES", help="Not what is younger: transaction.max.timeout.ms."),
    ] = DEFAULT_TIMEOUT_MINUTES,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Find transactions that are open on a partition while no coordinator will end them."""
    with connected(bootstrap, properties, command_config, timeout) as client:
        rows = _hanging(client, topic, round(older_than * 60_000))
    if as_json:
        for row in rows:
            print_json(row)
        return
    if not rows:
        echo("no transaction hangs")
        return
    print_table(
        ("TOPIC", "PARTITION", "PRODUCER ID", "EPOCH", "START OFFSET", "LAST", "TRANSACTIONAL ID"),
        [
            (
                row["topic"],
                row["partition"],
                row["producer_id"],
                row["producer_epoch"],
                row["start_offset"],
                row["last_time"],
                row["transactional_id"],
            )
            for row in rows
        ],
        right=("PARTITION", "PRODUCER ID", "EPOCH", "START OFFSET"),
    )


def abort(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    partition: Annotated[int, typer.Argument(help="The partition.")],
    start_offset: Annotated[
        int | None,
        typer.Option("--start-offset", help="Where the transaction began, as `hanging` shows it.", show_default=False),
    ] = None,
    producer_id: Annotated[
        int | None, typer.Option("--producer-id", help="Else: whose transaction.", show_default=False)
    ] = None,
    producer_epoch: Annotated[
        int | None, typer.Option("--producer-epoch", help="Its epoch.", show_default=False)
    ] = None,
    coordinator_epoch: Annotated[
        int | None, typer.Option("--coordinator-epoch", help="The coordinator's epoch.", show_default=False)
    ] = None,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Abort a transaction on one partition. Only for one that hangs: a living one is its producer's to end."""
    if (start_offset is None) == (producer_id is None):
        raise usage("say which transaction: --start-offset, or --producer-id with --producer-epoch")
    if producer_id is not None and producer_epoch is None:
        raise usage("--producer-id needs --producer-epoch")
    with connected(bootstrap, properties, command_config, timeout) as client:
        client.topics([topic])
        if start_offset is not None:
            states = describe_producers(client, topic, [partition])[partition]
            found = next((each for each in states if each.current_txn_start_offset == start_offset), None)
            if found is None:
                raise fail(f"no transaction is open on {topic}-{partition} from offset {start_offset}", code=NOT_FOUND)
            producer_id, producer_epoch = found.producer_id, found.producer_epoch
            coordinator_epoch = found.coordinator_epoch if coordinator_epoch is None else coordinator_epoch
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
    if as_json:
        print_json({"topic": topic, "partition": partition, "producer_id": producer_id, "aborted": True})
    else:
        echo(f"aborted the transaction of producer {producer_id} on {topic}-{partition}")


def _hanging(client: Client, topics: list[str] | None, older_than_ms: int) -> list[dict[str, Any]]:
    """What is open for too long and unknown to a coordinator, or known to it but not with this partition."""
    oldest = _now() - older_than_ms
    suspects = [
        (topic.name, index, each)
        for topic in client.topics(topics or None)
        for index, states in describe_producers(client, topic.name, topic.partitions).items()
        for each in states
        if each.current_txn_start_offset >= 0 and each.last_timestamp <= oldest
    ]
    if not suspects:
        return []
    ids = sorted({each.producer_id for _, _, each in suspects})
    owners = {each.producer_id: each.transactional_id for _, each in list_transactions(client, (), ids)}
    claimed: dict[int, set[tuple[str, int]]] = {}
    for producer_id, name in owners.items():
        try:
            _, state = describe_transaction(client, name)
        except KafkaError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            continue
        claimed[producer_id] = {(found.topic, index) for found in state.topics for index in found.partitions}
    return [
        {
            "topic": topic,
            "partition": index,
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "coordinator_epoch": each.coordinator_epoch,
            "start_offset": each.current_txn_start_offset,
            "last_time": when(each.last_timestamp),
            "open_ms": _now() - each.last_timestamp,
            "transactional_id": owners.get(each.producer_id),
        }
        for topic, index, each in suspects
        if (topic, index) not in claimed.get(each.producer_id, set())
    ]


def _now() -> int:
    return time.time_ns() // 1_000_000
