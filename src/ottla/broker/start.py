"""Start and stop of all nodes: `meta.properties`, metadata, logs, registration, clean shutdown."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.broker import Broker
from ottla.broker.nodes.log_moves import misplaced, resume_moves
from ottla.broker.nodes.replicas import (
    bring_replicas_in_sync,
    fence_absent_brokers,
    leave_to_log_owners,
    owners_at_start,
    take_directory_offline,
)
from ottla.broker.nodes.voters import CONTROLLER_ENDPOINT
from ottla.broker.runtime import BrokerRuntime
from ottla.cluster.brokers import (
    begin_controlled_shutdown,
    fence_broker,
    register_broker,
    register_controller,
    unfence_broker,
)
from ottla.cluster.metadata.damage import DamagedMetadataError
from ottla.cluster.metadata.format import check_bootstrap, format_directory
from ottla.cluster.metadata.log import MetadataLog, MetadataLogConfig, holds_metadata_log
from ottla.cluster.metadata.meta_properties import (
    MetaProperties,
    MetaPropertiesError,
    read_meta_properties,
    write_meta_properties,
)
from ottla.cluster.metadata.quorum import Voter
from ottla.cluster.registrations import Listener
from ottla.protocol.errors import KafkaError
from ottla.protocol.schema import Uuid
from ottla.security.authorizer import authorizer_from_config
from ottla.storage.directory import LogDirectory
from ottla.storage.memory_limit import MemoryLimit
from ottla.storage.names import CLEAN_SHUTDOWN_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.cluster.server_config import Endpoint, ServerConfig
    from ottla.events import Events
    from ottla.storage.config import LogConfig
    from ottla.storage.names import TopicPartition
    from ottla.world.world import World

log = logging.getLogger(__name__)

SECURITY_PROTOCOL_IDS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


class StartError(Exception):
    """The broker cannot start; the message is one sentence with the cause and what to do."""


def open_cluster(
    world: World,
    configs: Sequence[ServerConfig],
    advertised: Mapping[int, Sequence[Endpoint]],
    *,
    sync: bool = False,
    cluster_id: str | None = None,
    events: Events | None = None,
    allow_unsigned_tokens: bool = False,
) -> BrokerRuntime:
    """Open the log directories of all nodes, load metadata and logs, and register the nodes.

    `advertised` has the advertised listeners of each node. The first node holds the metadata log.
    """
    opened: list[LogDirectory] = []
    try:
        return _open(
            world,
            configs,
            advertised,
            opened,
            sync=sync,
            cluster_id=cluster_id,
            events=events,
            allow_unsigned_tokens=allow_unsigned_tokens,
        )
    except BaseException:
        for directory in opened:
            directory.abandon()
        raise


def _open(
    world: World,
    configs: Sequence[ServerConfig],
    advertised: Mapping[int, Sequence[Endpoint]],
    opened: list[LogDirectory],
    *,
    sync: bool,
    cluster_id: str | None,
    events: Events | None,
    allow_unsigned_tokens: bool,
) -> BrokerRuntime:
    directories: dict[int, list[LogDirectory]] = {}
    for config in configs:
        assert config.node_id is not None
        directories[config.node_id] = [_open_directory(world, path, sync, opened) for path in config.log_dirs]
    identities = {directory.path: _read_identity(world, directory.path) for directory in opened}
    cluster_id = _cluster_id(world, identities, cluster_id)
    first = configs[0]
    assert first.node_id is not None
    metadata_path = first.metadata_log_dir or first.log_dirs[0]
    ids: dict[str, Uuid] = {}
    for config in configs:
        assert config.node_id is not None
        for directory in directories[config.node_id]:
            ids[directory.path] = _identify(
                world,
                directory,
                identities[directory.path],
                config.node_id,
                cluster_id,
                metadata_path,
                static_voters=bool(config.value("controller.quorum.voters")),
            )
    metadata_directory = next(d for d in directories[first.node_id] if d.path == metadata_path.rstrip("/"))
    try:
        metadata = MetadataLog.open(metadata_directory, first.node_id, MetadataLogConfig.from_broker(first.layers()))
    except DamagedMetadataError as error:
        raise StartError(str(error)) from error
    _check_metadata_end(metadata, opened)
    level = metadata.image.metadata_version
    bootstrap_problem = check_bootstrap(world.disk, metadata_directory.path, level, world.clock.now_ms())
    for problem in [*metadata.problems, *([bootstrap_problem] if bootstrap_problem else [])]:
        log.warning("%s", problem)
    insync = first.value("min.insync.replicas")
    metadata.start_epoch(min_insync_replicas=insync if isinstance(insync, int) else 1)
    runtime = BrokerRuntime(world, metadata, cluster_id=cluster_id, sync=sync, events=events)
    runtime.allow_unsigned_tokens = allow_unsigned_tokens
    for config in configs:
        assert config.node_id is not None
        try:
            broker = Broker(runtime, config.node_id, config, directories[config.node_id])
        except ValueError as error:
            raise StartError(str(error)) from error
        broker.endpoints = {endpoint.listener: endpoint for endpoint in advertised[config.node_id]}
        broker.directory_ids = {directory.path: ids[directory.path] for directory in directories[config.node_id]}
        runtime.nodes[config.node_id] = broker
    try:
        runtime.authorizer = authorizer_from_config(first, lambda: runtime.image.acls.values())
    except ValueError as error:
        raise StartError(str(error)) from error
    memory = _memory_limit(runtime)
    for node in runtime.nodes.values():
        for directory in node.directories:
            directory.env.on_failure = partial(_directory_failed, runtime, node, directory)
            directory.env.memory = memory
            directory.env.producer_expiration_ms = node.config_int("producer.id.expiration.ms")
    _load_logs(runtime)
    _register(runtime)
    runtime.open_partitions()
    resume_moves(runtime)
    for node in runtime.nodes.values():
        node.transactions.start()
        node.share_coordinator.start()
    runtime.housekeeping.start()
    return runtime


def add_node(runtime: BrokerRuntime, config: ServerConfig, advertised: Sequence[Endpoint]) -> Broker:
    """Open the log directories of another node and register it."""
    assert config.node_id is not None
    world = runtime.world
    directories: list[LogDirectory] = []
    for path in config.log_dirs:
        _open_directory(world, path, runtime.sync, directories)
    broker = Broker(runtime, config.node_id, config, directories)
    for directory in directories:
        directory.env.producer_expiration_ms = broker.config_int("producer.id.expiration.ms")
        known = _read_identity(world, directory.path)
        broker.directory_ids[directory.path] = _identify(
            world, directory, known, config.node_id, runtime.cluster_id, ""
        )
    broker.endpoints = {endpoint.listener: endpoint for endpoint in advertised}
    runtime.nodes[config.node_id] = broker
    for directory in directories:
        directory.env.memory = _memory_limit(runtime)
        directory.load(lambda topic: runtime.log_config(topic, broker)[0], is_stray=lambda *_: False)
    broker.epoch, records = register_broker(
        runtime.image,
        broker_id=broker.node_id,
        incarnation_id=Uuid(world.random.uuid()),
        listeners=[_listener(endpoint) for endpoint in broker.endpoints.values()],
        directories=list(broker.directory_ids.values()),
        next_offset=runtime.metadata.next_offset,
        layers=broker.layers,
        rack=broker.rack,
    )
    runtime.change(records)
    runtime.change(unfence_broker(runtime.image, broker.node_id, layers=broker.layers, cordoned=broker.cordoned_ids()))
    broker.transactions.start()
    broker.share_coordinator.start()
    return broker


def close_cluster(runtime: BrokerRuntime) -> None:
    """Shut down cleanly: flush everything, so that the next start needs no recovery."""
    runtime.housekeeping.stop()
    runtime.coordinator_loading.stop()
    runtime.world.workers.close()
    for node in runtime.nodes.values():
        for listener in node.authentication.values():
            listener.close()
        node.groups.unload_all()
        node.transactions.stop()
        node.share_partitions.stop()
        node.share_coordinator.stop()
    try:
        runtime.metadata.append(leave_to_log_owners(runtime))
        for node in runtime.nodes.values():
            # The next broker to open the directory must not wait for this one to expire.
            runtime.metadata.append(begin_controlled_shutdown(runtime.image, node.node_id, layers=node.layers))
            runtime.metadata.append(fence_broker(runtime.image, node.node_id, layers=node.layers))
        runtime.metadata.close()
    except KafkaError as error:
        log.warning("the metadata could not be closed cleanly: %s", error.message)
    for node in runtime.nodes.values():
        for directory in node.directories:
            try:
                directory.close(node.epoch)
            except KafkaError as error:  # the other directories are closed anyway
                log.warning("%s could not be closed cleanly: %s", directory.path, error.message)


def _open_directory(world: World, path: str, sync: bool, opened: list[LogDirectory]) -> LogDirectory:
    directory = LogDirectory(
        world.disk,
        world.clock,
        world.random.fork(f"log directory {path}"),
        path,
        sync=sync,
        on_failure=lambda failed, error: log.error("log directory %s is offline: %s", failed.path, error),
    )
    try:
        directory.open()
    except BlockingIOError as error:
        raise StartError(
            f"{path} is in use by another process (its .lock is held); stop that one or choose another directory"
        ) from error
    except OSError as error:
        raise StartError(f"{path} cannot be used as a log directory: {error.strerror or error}") from error
    directory.env.on_problem = partial(log.warning, "%s")
    opened.append(directory)
    return directory


def _memory_limit(runtime: BrokerRuntime) -> MemoryLimit | None:
    """Return the limit of logs in memory; None for logs on disk."""
    disk = runtime.world.memory
    return None if disk is None else MemoryLimit(disk, runtime.world.clock, runtime.housekeeping.reclaim_memory)


def _directory_failed(runtime: BrokerRuntime, node: Broker, directory: LogDirectory, error: OSError) -> None:
    log.error("log directory %s is offline: %s", directory.path, error)
    if directory is runtime.metadata.directory or not any(candidate.online for candidate in node.directories):
        runtime.storage_lost.set()
    else:
        # The failure may come in the middle of an append.
        runtime.world.clock.call_soon(take_directory_offline, runtime, node, directory)


def _read_identity(world: World, path: str) -> MetaProperties | None:
    try:
        return read_meta_properties(world.disk, path)
    except MetaPropertiesError as error:
        raise StartError(f"{error}; run `ottla log repair {path}` to write a new one") from error


def _cluster_id(world: World, identities: Mapping[str, MetaProperties | None], requested: str | None) -> str:
    known = {path: meta.cluster_id for path, meta in identities.items() if meta is not None and meta.cluster_id}
    chosen = requested or next(iter(known.values()), None) or str(Uuid(world.random.uuid()))
    for path, cluster_id in known.items():
        if cluster_id != chosen:
            raise StartError(f"{path} belongs to cluster {cluster_id}, not to {chosen}")
    return chosen


def _identify(
    world: World,
    directory: LogDirectory,
    meta: MetaProperties | None,
    node_id: int,
    cluster_id: str,
    metadata_path: str,
    *,
    static_voters: bool = False,
) -> Uuid:
    """Return the directory id; format a directory without `meta.properties`, keeping its other files."""
    now = world.clock.now_ms()
    if meta is None:
        fresh = MetaProperties(cluster_id, node_id, Uuid(world.random.uuid()))
        assert fresh.directory_id is not None
        format_directory(
            world.disk,
            directory.path,
            fresh,
            now_ms=now,
            voters=()
            if static_voters or holds_metadata_log(world.disk, directory.path)
            else (Voter(node_id, fresh.directory_id, (CONTROLLER_ENDPOINT,)),),
            holds_metadata=directory.path == metadata_path.rstrip("/"),
        )
        return fresh.directory_id
    if meta.node_id != node_id:
        raise StartError(
            f"{directory.path}/meta.properties: the directory belongs to node {meta.node_id}, not to node {node_id}; "
            f"start it with `-c node.id={meta.node_id}`, or correct node.id in that file"
        )
    if meta.directory_id is None:
        meta = replace(meta, directory_id=Uuid(world.random.uuid()), cluster_id=cluster_id, version=1)
        write_meta_properties(world.disk, directory.path, meta, now)
    assert meta.directory_id is not None
    return meta.directory_id


def _load_logs(runtime: BrokerRuntime) -> None:
    def stray(partition: TopicPartition, topic_id: Uuid | None) -> bool:
        topic = runtime.image.topic(partition.topic)
        if topic is None or partition.partition not in topic.partitions:
            return True
        return topic_id is not None and topic_id != topic.id  # of a deleted topic with the same name

    for node in runtime.nodes.values():

        def config_for(topic: str, node: Broker = node) -> LogConfig:
            return runtime.log_config(topic, node)[0]

        for directory in node.directories:
            directory.load(
                config_for,
                is_stray=stray,
                keep_strays=runtime.metadata.was_cut,
                topic_id_for=runtime.image.topic_ids.get,
            )
            _log_recovery(directory)
    _log_missing_folders(runtime)


def _log_recovery(directory: LogDirectory) -> None:
    checked = [report for report in directory.reports if report.segments_checked]
    if checked:
        size = sum(report.bytes_checked for report in checked)
        why = "files of them are missing" if directory.had_clean_shutdown else "the last shutdown was not clean"
        log.info("%s: recovered %d logs, because %s; %d bytes read", directory.path, len(checked), why, size)
    for report in directory.reports:
        for loss in report.losses():
            log.warning("%s", loss)
    for stray in directory.strays:
        log.warning("%s/%s: stray partition, which the metadata does not have", directory.path, stray)
    for name in directory.unclaimed:
        log.warning(
            "%s/%s: the metadata does not have this partition; left as it is, because the metadata log was cut",
            directory.path,
            name,
        )


def _log_missing_folders(runtime: BrokerRuntime) -> None:
    """Report partitions whose records were flushed but whose folder is in no log directory."""
    directories = [directory for node in runtime.nodes.values() for directory in node.directories]
    present = {partition for directory in directories for partition in directory.logs}
    for directory in directories:
        for partition, offset in directory.flushed_offsets.items():
            if offset > 0 and partition not in present and runtime.image.partition(*partition) is not None:
                log.warning(
                    "%s/%s: missing, although its records up to offset %d were flushed; the partition is empty now",
                    directory.path,
                    partition,
                    offset - 1,
                )


def _check_metadata_end(metadata: MetadataLog, directories: Sequence[LogDirectory]) -> None:
    """Refuse a metadata log that ends before the broker epoch in a clean shutdown file: its end was lost."""
    for directory in directories:
        epoch = directory.clean_shutdown_epoch()
        if epoch is not None and epoch >= metadata.next_offset:
            raise StartError(
                f"{metadata.folder}: the log ends at offset {metadata.next_offset}, before broker epoch {epoch} in "
                f"{directory.file(CLEAN_SHUTDOWN_FILE)}: its end is lost; restore it, or run `ottla log repair "
                f"{metadata.directory.path} --metadata truncate` to continue without it"
            )


def _register(runtime: BrokerRuntime) -> None:
    random = runtime.world.random
    owners = owners_at_start(runtime)
    controller = runtime.controller
    runtime.metadata.append(
        register_controller(
            controller.node_id, Uuid(random.uuid()), [_listener(endpoint) for endpoint in controller.endpoints.values()]
        )
    )
    for node in runtime.nodes.values():
        epochs = {directory.previous_broker_epoch for directory in node.directories}
        known = next(iter(epochs)) if len(epochs) == 1 else None
        node.epoch, records = register_broker(
            runtime.image,
            broker_id=node.node_id,
            incarnation_id=Uuid(random.uuid()),
            listeners=[_listener(endpoint) for endpoint in node.endpoints.values()],
            directories=list(node.directory_ids.values()),
            next_offset=runtime.metadata.next_offset,
            layers=node.layers,
            rack=node.rack,
            previous_epoch=-1 if known is None else known,
        )
        runtime.metadata.append(records)
        runtime.metadata.append(misplaced(node, runtime.image.topics.values()))
        runtime.metadata.append(
            unfence_broker(runtime.image, node.node_id, layers=node.layers, cordoned=node.cordoned_ids())
        )
    runtime.metadata.append(bring_replicas_in_sync(runtime, owners))
    runtime.metadata.append(fence_absent_brokers(runtime))


def _listener(endpoint: Endpoint) -> Listener:
    return Listener(
        endpoint.listener,
        endpoint.host or "localhost",
        endpoint.port,
        SECURITY_PROTOCOL_IDS[endpoint.security_protocol],
    )
