"""`ottla cluster`: show brokers, APIs, features, the metadata quorum and log directories."""

from typing import Annotated, Any

import typer

from ottla.cli.options.commands import add_command, add_group
from ottla.cli.options.connect import AsJson, ClusterOptions
from ottla.cli.terminal.output import echo, print_json, print_rows, print_table
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
from ottla.quantities import format_count, format_size

METADATA_TOPIC = "__cluster_metadata"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = add_group(app, "cluster")
    add_command(group, "describe", describe, "ottla cluster describe -b broker:9092")
    add_command(group, "apis", apis, "ottla cluster apis --node 2")
    add_command(group, "features", features, "ottla cluster features")
    add_command(group, "quorum", quorum, "ottla cluster quorum --json")
    add_command(group, "log-dirs", log_dirs, "ottla cluster log-dirs --topic orders")


def describe(*, as_json: AsJson = False, cluster: ClusterOptions) -> None:
    """Show the cluster id, the controller and the brokers."""
    with cluster.connect() as client:
        response = client.to_any(DescribeClusterRequest(), DescribeClusterResponse)
        if response.error_code:
            raise KafkaError(response.error_code, response.error_message)
        topics = client.topics()
    led: dict[int, int] = {}
    for topic in topics:
        for partition in topic.partitions.values():
            led[partition.leader] = led.get(partition.leader, 0) + 1
    brokers = [
        {
            "node": broker.broker_id,
            "host": broker.host,
            "port": broker.port,
            "rack": broker.rack,
            "controller": broker.broker_id == response.controller_id,
            "leads": led.get(broker.broker_id, 0),
        }
        for broker in sorted(response.brokers, key=lambda broker: broker.broker_id)
    ]
    count = sum(len(topic.partitions) for topic in topics)
    if as_json:
        print_json(
            {
                "cluster_id": response.cluster_id,
                "controller": response.controller_id,
                "topics": len(topics),
                "partitions": count,
                "brokers": brokers,
            }
        )
        return
    counts = (
        format_count(len(brokers), "broker"),
        format_count(len(topics), "topic"),
        format_count(count, "partition"),
    )
    echo(f"cluster {response.cluster_id}: {', '.join(counts)}")
    print_table(
        ("NODE", "ADDRESS", "RACK", "LEADS", "NOTE"),
        [
            (
                broker["node"],
                f"{broker['host']}:{broker['port']}",
                broker["rack"],
                broker["leads"],
                "controller" if broker["controller"] else "",
            )
            for broker in brokers
        ],
        right=("NODE", "LEADS"),
    )


def apis(
    *,
    node: Annotated[
        int | None,
        typer.Option("--node", "-n", metavar="ID", help="Ask this broker.", show_default="the one with the lowest id"),
    ] = None,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Show the APIs and versions that a broker supports."""
    with cluster.connect() as client:
        broker = client.node(min(client.brokers) if node is None else node)
        rows = []
        for key, versions in sorted(broker.versions.items()):
            api = find_api(key)
            rows.append(
                {
                    "key": key,
                    "api": api.name if api is not None else f"unknown ({key})",
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


def features(*, as_json: AsJson = False, cluster: ClusterOptions) -> None:
    """Show finalized and supported feature versions."""
    with cluster.connect() as client:
        request = ApiVersionsRequest(client_software_name="ottla", client_software_version="1")
        response = client.to_any(request, ApiVersionsResponse)
    finalized = {feature.name: feature.max_version_level for feature in response.finalized_features}
    rows = [
        {
            "feature": feature.name,
            "finalized": finalized.get(feature.name, 0),
            "min": feature.min_version,
            "max": feature.max_version,
        }
        for feature in sorted(response.supported_features, key=lambda feature: feature.name)
    ]
    print_rows(
        as_json,
        rows,
        ("FEATURE", "FINALIZED", "SUPPORTED"),
        lambda row: (row["feature"], row["finalized"], f"{row['min']}-{row['max']}"),
        right=("FINALIZED",),
    )


def quorum(*, as_json: AsJson = False, cluster: ClusterOptions) -> None:
    """Show the voters and observers of the metadata quorum."""
    with cluster.connect() as client:
        request = DescribeQuorumRequest(
            topics=[RequestTopicData(topic_name=METADATA_TOPIC, partitions=[RequestPartitionData(partition_index=0)])]
        )
        response = client.to_controller(request, DescribeQuorumResponse)
        code = response.error_code or (response.topics[0].partitions[0].error_code if response.topics else 0)
        if code:
            raise KafkaError(code, response.error_message)
    partition = response.topics[0].partitions[0]
    rows = [
        {
            "node": replica.replica_id,
            "role": "leader" if replica.replica_id == partition.leader_id else role,
            "log_end_offset": replica.log_end_offset,
            "lag": partition.high_watermark - replica.log_end_offset if partition.high_watermark >= 0 else None,
        }
        for role, replicas in (("voter", partition.current_voters), ("observer", partition.observers))
        for replica in replicas
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
    echo(f"leader {partition.leader_id}, epoch {partition.leader_epoch}, high watermark {partition.high_watermark}")
    print_table(
        ("NODE", "ROLE", "LOG END", "LAG"),
        [(row["node"], row["role"], row["log_end_offset"], row["lag"]) for row in rows],
        right=("NODE", "LOG END", "LAG"),
    )


def log_dirs(
    *,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", metavar="NAME", help="Count only this topic's partitions.", show_default=False),
    ] = None,
    node: Annotated[
        int | None, typer.Option("--node", "-n", metavar="ID", help="Show only this broker.", show_default=False)
    ] = None,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Show log directories, the size of their logs and free space."""
    rows: list[dict[str, Any]] = []
    with cluster.connect() as client:
        if topic is not None:
            client.topics([topic])  # raises an error if there is no such topic
        for broker in sorted(client.brokers) if node is None else [node]:
            response = client.to_node(broker, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
            if response.error_code:
                raise KafkaError(response.error_code, f"broker {broker}")
            for result in response.results:
                logs = [
                    partition.partition_size
                    for listed in result.topics
                    for partition in listed.partitions
                    if topic is None or listed.name == topic
                ]
                rows.append(
                    {
                        "node": broker,
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
                format_size(row["bytes"]),
                None if row["usable_bytes"] is None else format_size(row["usable_bytes"]),
                row["error"],
            )
            for row in rows
        ],
        right=("NODE", "PARTITIONS", "SIZE", "FREE"),
    )
