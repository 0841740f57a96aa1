"""One broker node: its configs, the partitions that it leads, its coordinators and fetch sessions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ottla.broker.coordinators.environment import CoordinatorLogs, GroupConfigs, GroupTopics, TransactionEnvironment
from ottla.broker.coordinators.streams_topics import StreamsTopics
from ottla.broker.fetch.fetch_sessions import FetchSessions
from ottla.broker.share.partitions import SharePartitions
from ottla.broker.share.states import ShareStates, share_config, share_coordinator
from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.configs.effective import BrokerLayers, broker_value
from ottla.cluster.internal_topics import GROUP_METADATA_TOPIC
from ottla.groups.coordinator import GroupCoordinator
from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security.quotas import Quotas
from ottla.transactions.coordinator import TransactionCoordinator
from ottla.transactions.verification import PartitionVerifier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.broker.authentication import ListenerAuthentication
    from ottla.broker.partition import Partition
    from ottla.broker.runtime import BrokerRuntime
    from ottla.broker.session import Call, Session
    from ottla.cluster.configs import Value
    from ottla.cluster.partitions.state import Partition as PartitionState
    from ottla.cluster.server_config import Endpoint, ServerConfig
    from ottla.protocol.schema import Uuid
    from ottla.storage.directory import LogDirectory
    from ottla.storage.log.log import Log

R = TypeVar("R")

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class LeaderHint(NamedTuple):
    """The leader of a partition and its address, for a client that sent its request to another node (KIP-951)."""

    leader: int
    epoch: int
    host: str
    port: int
    rack: str | None


class Broker:
    """One node of the cluster.

    Raise ValueError if the SASL settings of a listener cannot work.
    """

    def __init__(
        self, runtime: BrokerRuntime, node_id: int, config: ServerConfig, directories: list[LogDirectory]
    ) -> None:
        self.runtime = runtime
        self.node_id = node_id
        self.server_config = config
        self.directories = directories
        self.directory_ids: dict[str, Uuid] = {}
        """Directory id in the metadata, by path."""
        self.endpoints: dict[str, Endpoint] = {}
        self.epoch = -1
        self._values: dict[str, Value] = {}
        self.quotas = Quotas(
            lambda: runtime.image.client_quotas,
            runtime.world.clock.monotonic,
            samples=self.config_int("quota.window.num"),
            sample_seconds=self.config_int("quota.window.size.seconds"),
        )
        self.authentication: dict[str, ListenerAuthentication] = {}
        for endpoint in config.listeners:
            if endpoint.security_protocol.startswith("SASL"):
                from ottla.broker.authentication import ListenerAuthentication  # only if a listener needs it

                self.authentication[endpoint.listener] = ListenerAuthentication(self, endpoint)
        self.group_configs = GroupConfigs(self)
        logs = CoordinatorLogs(self)
        random, clock = runtime.world.random, runtime.world.node_clock(node_id)
        self.events = runtime.events.of_node(node_id)
        self.share_states = ShareStates(runtime)
        self.groups = GroupCoordinator(
            clock=clock,
            random=random.fork(f"groups of node {node_id}"),
            log=logs,
            topics=GroupTopics(runtime),
            settings=self.group_configs,
            partition_count=lambda: runtime.partition_count(GROUP_METADATA_TOPIC, "offsets.topic.num.partitions"),
            share_states=self.share_states,
            events=self.events,
        )
        self.streams_topics = StreamsTopics(runtime)
        transactions = TransactionEnvironment(self)
        self.transactions = TransactionCoordinator(
            clock, logs, transactions, transactions, transactions, transactions.config(), self.events
        )
        self.verifier = PartitionVerifier(clock, lambda: self.transactions.config, runtime.transaction_coordinator)
        self.share_coordinator = share_coordinator(self, clock)
        self.share_partitions = SharePartitions(self, self.share_states)
        self.fetch_sessions = FetchSessions(
            runtime.world.clock,
            random.fork(f"fetch sessions of node {node_id}"),
            self.config_int("max.incremental.fetch.session.cache.slots"),
        )

    def __repr__(self) -> str:
        return f"<Broker {self.node_id}>"

    @property
    def rack(self) -> str | None:
        """Return `broker.rack`."""
        return self.server_config.rack

    # Configs

    @property
    def layers(self) -> BrokerLayers:
        """Return the layers of texts that decide this broker's configs."""
        image = self.runtime.image
        return self.server_config.layers(
            image.config(ConfigResourceType.BROKER, str(self.node_id)), image.config(ConfigResourceType.BROKER, "")
        )

    def config(self, name: str) -> Value:
        """Return the value of a broker config."""
        try:
            return self._values[name]
        except KeyError:
            value = self._values[name] = broker_value(self.layers, name)
            return value

    def config_int(self, name: str) -> int:
        """Return the value of a broker config that is a number."""
        value = self.config(name)
        assert isinstance(value, int)
        return value

    def config_bool(self, name: str) -> bool:
        """Return the value of a broker config that is a boolean."""
        value = self.config(name)
        assert isinstance(value, bool)
        return value

    def max_connections_per_ip(self, host: str) -> int:
        """Return `max.connections.per.ip` for an address, with `max.connections.per.ip.overrides`."""
        for override in self._list("max.connections.per.ip.overrides"):
            name, _, limit = override.rpartition(":")
            if name == host:
                return int(limit)
        return self.config_int("max.connections.per.ip")

    def _list(self, name: str) -> tuple[str, ...]:
        value = self.config(name)
        if isinstance(value, str):
            return tuple(part for part in value.split(",") if part)
        return value if isinstance(value, tuple) else ()

    @property
    def cordoned_directories(self) -> list[LogDirectory]:
        """Return the cordoned directories: they get no new partitions (KIP-1066)."""
        named = self._list("cordoned.log.dirs")
        paths = set(map(os.path.abspath, named))
        return [directory for directory in self.directories if "*" in named or directory.path in paths]

    def cordoned_ids(self) -> list[Uuid]:
        """Return the directory ids of the cordoned directories."""
        return [self.directory_ids[directory.path] for directory in self.cordoned_directories]

    def directory_for(self, state: PartitionState) -> LogDirectory:
        """Return the directory for the log of a new partition.

        That is the one that the metadata names, else the uncordoned one with the fewest logs.
        """
        online = [directory for directory in self.directories if directory.online]
        if self.node_id in state.replicas:
            named = state.directories[state.replicas.index(self.node_id)]
            for directory in online:
                if self.directory_ids.get(directory.path) == named:
                    return directory
        cordoned = self.cordoned_directories
        uncordoned = [directory for directory in online if directory not in cordoned]
        return min(uncordoned, key=lambda directory: len(directory.logs)) if uncordoned else online[0]

    def configs_changed(self) -> None:
        """Drop cached config values and pass the new ones on."""
        self._values.clear()
        for authentication in self.authentication.values():
            authentication.configs_changed()
        self.group_configs.configs_changed()
        self.share_partitions.configs_changed()
        self.transactions.config = TransactionEnvironment(self).config()
        self.share_coordinator.config = share_config(self)

    # Partitions

    def partition(self, topic: str, index: int) -> Partition:
        """Return a partition of the cluster; raise UNKNOWN_TOPIC_OR_PARTITION if there is none."""
        partition = self.runtime.partitions.get((topic, index))
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partition

    def leader_partition(self, topic: str, index: int) -> Partition:
        """Return a partition that this node leads; raise NOT_LEADER_OR_FOLLOWER if another one does."""
        partition = self.runtime.partitions.get((topic, index))
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if partition.state.leader != self.node_id:
            raise self.not_served(partition)
        return partition

    def not_served(self, partition: Partition) -> KafkaError:
        """Return KAFKA_STORAGE_ERROR for a replica on an offline log directory, else NOT_LEADER_OR_FOLLOWER."""
        if self.node_id in partition.state.replicas and partition.log.env.failure is not None:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def readable_partition(self, topic: str, topic_id: Uuid, index: int, version: int) -> Partition:
        """Return a partition that a consumer may fetch from this node, as leader or as in-sync follower (KIP-392)."""
        if version >= 13:
            topic_image = self.runtime.image.topics.get(topic_id)
            if topic_image is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            topic = topic_image.name
        partition = self.partition(topic, index)
        if partition.state.leader != self.node_id and not (version >= 11 and self.node_id in partition.state.isr):
            raise self.not_served(partition)
        return partition

    def leader_hint(self, listener: str, topic: str, topic_id: Uuid, index: int) -> LeaderHint | None:
        """Return where the leader of a partition is, if the client's listener has it."""
        image = self.runtime.image
        topic_image = image.topics.get(topic_id) or image.topic(topic)
        state = topic_image.partitions.get(index) if topic_image is not None else None
        if state is None:
            return None
        leader = self.runtime.nodes.get(state.leader)
        endpoint = leader.endpoints.get(listener) if leader is not None else None
        if leader is None or endpoint is None:
            return None
        return LeaderHint(state.leader, state.leader_epoch, endpoint.host or "localhost", endpoint.port, leader.rack)

    def preferred_replica(self, partition: Partition, rack: str, call: Call) -> int | None:
        """Return the in-sync follower in the client's rack, if `replica.selector.class` selects by rack (KIP-392)."""
        selector = self.config("replica.selector.class")
        if not rack or call.version < 11 or partition.state.leader != self.node_id:
            return None
        if not isinstance(selector, str) or not selector.endswith("RackAwareReplicaSelector") or rack == self.rack:
            return None
        for replica in partition.state.replicas:
            node = self.runtime.nodes.get(replica)
            if node is not None and node.rack == rack and replica in partition.state.isr:
                return replica
        return None

    # Authentication

    def after_failed_authentication(self, session: Session, refusal: R) -> Pending[R]:
        """Return the refusal after `connection.failed.authentication.delay.ms`; the connection closes then."""
        session.closing = True
        response: Pending[R] = Pending(lambda: timer.cancel())
        pause = self.config_int("connection.failed.authentication.delay.ms") / 1000
        if not pause:
            response.complete(refusal)
            return response
        timer = self.runtime.world.clock.call_later(pause, lambda: response.complete(refusal))
        return response

    # Durability

    def when_durable(self, logs: Sequence[Log], response: R, failed: Callable[[], R]) -> Pending[R]:
        """Return the response once the logs are fsynced, or `failed()` if an fsync fails.

        A failed fsync takes the log directory offline; its records must not be acknowledged.
        """
        waiting = len(logs)
        pending: Pending[R] = Pending(effect_applied=True)
        failure: OSError | None = None

        def done(error: OSError | None) -> None:
            nonlocal waiting, failure
            waiting -= 1
            failure = failure or error
            if waiting == 0:
                pending.complete(response if failure is None else failed())

        for log in logs:
            try:
                log.flush(done)
            except KafkaError as error:  # the directory is offline already, perhaps because of another of these logs
                done(OSError(error.message))
        return pending
