"""`ottla cluster`: who is in it, what it can do, where its data is."""

from typing import Annotated, Any

import typer

from ottla.cli.connect import LOCAL, SECONDS, AsJson, Bootstrap, Properties, PropertiesFile, Timeout, connected
from ottla.cli.output import counted, examples, print_json, print_rows, print_table, size
from ottla.protocol.api import find_api
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.k35_describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from ottla.protocol.messages.k55_describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RequestPartitionData,
    RequestTopicData,
)
from ottla.protocol.messages.k60_describe_cluster import DescribeClusterRequest, DescribeClusterResponse

METADATA_TOPIC = "__cluster_metadata"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    cluster = typer.Typer(name="cluster", help="A Kafka cluster as a whole.", no_args_is_help=True)
    cluster.command("describe", epilog=examples("ottla cluster describe -b broker:9092"))(describe)
    cluster.command("apis", epilog=examples("ottla cluster apis --node 2"))(apis)
    cluster.command("features", epilog=examples("ottla cluster features"))(features)
    cluster.command("quorum", epilog=examples("ottla cluster quorum --json"))(quorum)
    cluster.command("log-dirs", epilog=examples("ottla cluster log-dirs --topic orders"))(log_dirs)
    app.add_typer(cluster)


def describe(
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show the cluster's id, its controller and its brokers."""
    with connected(bootstrap, properties, command_config, timeout) as client:
        answer = client.to_any(DescribeClusterRequest(), DescribeClusterResponse)
        if answer.error_code:
            raise KafkaError(answer.error_code, answer.error_message)
        topics = client.topics()
    led: dict[int, int] = {}
    for topic in topics:
        for partition in topic.partitions.values():
            led[partition.leader] = led.get(partition.leader, 0) + 1
    brokers = [
        {
            "node": each.broker_id,
            "host": each.host,
            "port": each.port,
            "rack": each.rack,
            "controller": each.broker_id == answer.controller_id,
            "leads": led.get(each.broker_id, 0),
        }
        for each in sorted(answer.brokers, key=lambda each: each.broker_id)
    ]
    if as_json:
        print_json(
            {
                "cluster_id": answer.cluster_id,
                "controller": answer.controller_id,
                "topics": len(topics),
                "partitions": sum(len(each.partitions) for each in topics),
                "brokers": brokers,
            }
        )
        return
    count = sum(len(each.partitions) for each in topics)
    sizes = (counted(len(brokers), "broker"), counted(len(topics), "topic"), counted(count, "partition"))
    typer.echo(f"cluster {answer.cluster_id}: {', '.join(sizes)}")
    print_table(
        ("NODE", "ADDRESS", "RACK", "LEADS", "NOTE"),
        [
            (
                each["node"],
                f"{each['host']}:{each['port']}",
                each["rack"],
                each["leads"],
                "controller" if each["controller"] else "",
            )
            for each in brokers
        ],
        right=("NODE", "LEADS"),
    )


def apis(
    node: Annotated[
        int | None, typer.Option("--node", "-n", help="Ask this broker, else any.", show_default=False)
    ] = None,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show the APIs and versions that a broker serves."""
    with connected(bootstrap, properties, command_config, timeout) as client:
        asked = client.node(min(client.brokers) if node is None else node)
        rows = []
        for key, versions in sorted(asked.versions.items()):
            known = find_api(key)
            rows.append(
                {
                    "key": key,
                    "api": known.name if known is not None else f"unknown ({key})",
                    "min": versions[0],
                    "max": versions[-1],
                }
            )
    print_rows(
        as_json,
        rows,
        ("KEY", "API", "VERSIONS"),
        lambda row: (row["key"], row["api"], f"{row['min']}-{row['max']}"),
        right=("KEY",),
    )


def features(
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show the features of the cluster: what is finalized, what is supported."""
    with connected(bootstrap, properties, command_config, timeout) as client:
        request = ApiVersionsRequest(client_software_name="ottla", client_software_version="1")
        answer = client.to_any(request, ApiVersionsResponse)
    finalized = {each.name: each.max_version_level for each in answer.finalized_features}
    rows = [
        {
            "feature": each.name,
            "finalized": finalized.get(each.name, 0),
            "min": each.min_version,
            "max": each.max_version,
        }
        for each in sorted(answer.supported_features, key=lambda each: each.name)
    ]
    print_rows(
        as_json,
        rows,
        ("FEATURE", "FINALIZED", "SUPPORTED"),
        lambda row: (row["feature"], row["finalized"], f"{row['min']}-{row['max']}"),
        right=("FINALIZED",),
    )


def quorum(
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show who votes on the cluster's metadata and who follows it."""
    with connected(bootstrap, properties, command_config, timeout) as client:
        request = DescribeQuorumRequest(
            topics=[RequestTopicData(topic_name=METADATA_TOPIC, partitions=[RequestPartitionData(partition_index=0)])]
        )
        answer = client.to_controller(request, DescribeQuorumResponse)
        code = answer.error_code or (answer.topics[0].partitions[0].error_code if answer.topics else 0)
        if code:
            raise KafkaError(code, answer.error_message)
    partition = answer.topics[0].partitions[0]
    rows = [
        {
            "node": each.replica_id,
            "role": "leader" if each.replica_id == partition.leader_id else role,
            "log_end_offset": each.log_end_offset,
            "lag": partition.high_watermark - each.log_end_offset if partition.high_watermark >= 0 else None,
        }
        for role, states in (("voter", partition.current_voters), ("observer", partition.observers))
        for each in states
    ]
    if as_json:
        print_json(
            {
                "leader": partition.leader_id,
                "leader_epoch": partition.leader_epoch,
                "high_watermark": partition.high_watermark,
                "replicas": rows,
            }
        )
        return
    typer.echo(f"leader {partition.leader_id}, epoch {partition.leader_epoch}, at offset {partition.high_watermark}")
    print_table(
        ("NODE", "ROLE", "LOG END", "LAG"),
        [(row["node"], row["role"], row["log_end_offset"], row["lag"]) for row in rows],
        right=("NODE", "LOG END", "LAG"),
    )


def log_dirs(
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.", show_default=False)] = None,
    node: Annotated[int | None, typer.Option("--node", "-n", help="Only this broker.", show_default=False)] = None,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Show the log directories of the brokers and how much is in them."""
    rows: list[dict[str, Any]] = []
    with connected(bootstrap, properties, command_config, timeout) as client:
        for each in sorted(client.brokers) if node is None else [node]:
            answer = client.to_node(each, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
            if answer.error_code:
                raise KafkaError(answer.error_code, f"broker {each}")
            for result in answer.results:
                logs = [
                    partition.partition_size
                    for found in result.topics
                    for partition in found.partitions
                    if topic is None or found.name == topic
                ]
                rows.append(
                    {
                        "node": each,
                        "path": result.log_dir,
                        "error": ErrorCode(result.error_code).name if result.error_code else None,
                        "partitions": len(logs),
                        "bytes": sum(logs),
                        "total_bytes": result.total_bytes if result.total_bytes >= 0 else None,
                        "usable_bytes": result.usable_bytes if result.usable_bytes >= 0 else None,
                    }
                )
    if as_json:
        for row in rows:
            print_json(row)
        return
    print_table(
        ("NODE", "DIRECTORY", "PARTITIONS", "SIZE", "FREE", "NOTE"),
        [
            (
                row["node"],
                row["path"],
                row["partitions"],
                size(row["bytes"]),
                None if row["usable_bytes"] is None else size(row["usable_bytes"]),
                row["error"],
            )
            for row in rows
        ],
        right=("NODE", "PARTITIONS", "SIZE", "FREE"),
    )
