"""One broker node: what it leads, what it remembers of its clients, and the configs in force for it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ottla.broker.coordinators import CoordinatorLogs, GroupConfigs, GroupTopics, TransactionWorld
from ottla.broker.fetch_sessions import FetchSessions
from ottla.broker.share.partitions import SharePartitions
from ottla.broker.share.states import ShareStates, share_config, share_coordinator
from ottla.broker.streams_topics import StreamsTopics
from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.configs.effective import BrokerLayers, broker_value
from ottla.cluster.registrations import GROUP_METADATA_TOPIC
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
    from ottla.cluster.registrations import Partition as PartitionState
    from ottla.cluster.server_config import Endpoint, ServerConfig
    from ottla.protocol.schema import Uuid
    from ottla.storage.directory import LogDirectory
    from ottla.storage.log.log import Log

R = TypeVar("R")

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class LeaderHint(NamedTuple):
    """Where the leader of a partition is, for a client that asked the wrong node."""

    leader: int
    epoch: int
    host: str
    port: int
    rack: str | None


class Broker:
    """One node of the cluster. ValueError if a listener asks for a login that cannot work."""

    def __init__(
        self, cluster: BrokerRuntime, node_id: int, config: ServerConfig, directories: list[LogDirectory]
    ) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.server_config = config
        self.directories = directories
        self.directory_ids: dict[str, Uuid] = {}
        """What each directory is called in the metadata, by its path."""
        self.endpoints: dict[str, Endpoint] = {}
        self.epoch = -1
        self._values: dict[str, Value] = {}
        self.quotas = Quotas(
            lambda: cluster.image.client_quotas,
            cluster.world.clock.monotonic,
            samples=self.config_int("quota.window.num"),
            sample_seconds=self.config_int("quota.window.size.seconds"),
        )
        self.authentication: dict[str, ListenerAuthentication] = {}
        for endpoint in config.listeners:
            if endpoint.security_protocol.startswith("SASL"):
                from ottla.broker.authentication import ListenerAuthentication  # a broker without logins does without

                self.authentication[endpoint.listener] = ListenerAuthentication(self, endpoint)
        self.group_configs = GroupConfigs(self)
        logs = CoordinatorLogs(self)
        random, clock = cluster.world.random, cluster.world.node_clock(node_id)
        self.events = cluster.events.of_node(node_id)
        self.share_states = ShareStates(cluster)
        self.groups = GroupCoordinator(
            clock=clock,
            random=random.fork(f"groups of node {node_id}"),
            log=logs,
            topics=GroupTopics(cluster),
            settings=self.group_configs,
            partition_count=lambda: cluster.partition_count(GROUP_METADATA_TOPIC, "offsets.topic.num.partitions"),
            share_states=self.share_states,
            events=self.events,
        )
        self.streams_topics = StreamsTopics(cluster)
        transactions = TransactionWorld(self)
        self.transactions = TransactionCoordinator(
            clock, logs, transactions, transactions, transactions, transactions.config(), self.events
        )
        self.verifier = PartitionVerifier(clock, lambda: self.transactions.config, cluster.transaction_coordinator)
        self.share_coordinator = share_coordinator(self, clock)
        self.share_partitions = SharePartitions(self, self.share_states)
        self.fetch_sessions = FetchSessions(
            cluster.world.clock,
            random.fork(f"fetch sessions of node {node_id}"),
            self.config_int("max.incremental.fetch.session.cache.slots"),
        )

    def __repr__(self) -> str:
        return f"<Broker {self.node_id}>"

    @property
    def rack(self) -> str | None:
        """Its rack."""
        return self.server_config.rack

    # Configs in force.

    @property
    def layers(self) -> BrokerLayers:
        """The texts that decide this broker's configs."""
        image = self.cluster.image
        return self.server_config.layers(
            image.config(ConfigResourceType.BROKER, str(self.node_id)), image.config(ConfigResourceType.BROKER, "")
        )

    def config(self, name: str) -> Value:
        """A broker config's value."""
        try:
            return self._values[name]
        except KeyError:
            value = self._values[name] = broker_value(self.layers, name)
            return value

    def config_int(self, name: str) -> int:
        """A broker config that is a number."""
        value = self.config(name)
        assert isinstance(value, int)
        return value

    def config_bool(self, name: str) -> bool:
        """A broker config that is true or false."""
        value = self.config(name)
        assert isinstance(value, bool)
        return value

    def max_connections_per_ip(self, host: str) -> int:
        """How many connections one address may have, with the exceptions that are configured."""
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
        """The directories that are to get no new partitions."""
        named = self._list("cordoned.log.dirs")
        paths = set(map(os.path.abspath, named))
        return [each for each in self.directories if "*" in named or each.path in paths]

    def cordoned_ids(self) -> list[Uuid]:
        """What those are called in the metadata."""
        return [self.directory_ids[each.path] for each in self.cordoned_directories]

    def directory_for(self, state: PartitionState) -> LogDirectory:
        """Where the log of a new partition is made: where the metadata says, else where the fewest are."""
        online = [each for each in self.directories if each.online]
        if self.node_id in state.replicas:
            named = state.directories[state.replicas.index(self.node_id)]
            for each in online:
                if self.directory_ids.get(each.path) == named:
                    return each
        cordoned = self.cordoned_directories
        open_ones = [each for each in online if each not in cordoned]
        return min(open_ones, key=lambda each: len(each.logs)) if open_ones else online[0]

    def configs_changed(self) -> None:
        """Forget values that were looked up."""
        self._values.clear()
        for each in self.authentication.values():
            each.configs_changed()
        self.group_configs.changed()
        self.share_partitions.configs_changed()
        self.transactions.config = TransactionWorld(self).config()
        self.share_coordinator.config = share_config(self)

    # Partitions.

    def partition(self, topic: str, index: int) -> Partition:
        """A partition of the cluster, whoever leads it."""
        partition = self.cluster.partitions.get((topic, index))
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partition

    def leader_partition(self, topic: str, index: int) -> Partition:
        """A partition that this node leads."""
        partition = self.cluster.partitions.get((topic, index))
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
        """A partition that a consumer may read here: one that is led, or one that is followed (KIP-392)."""
        if version >= 13:
            found = self.cluster.image.topics.get(topic_id)
            if found is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            topic = found.name
        partition = self.partition(topic, index)
        if partition.state.leader != self.node_id and not (version >= 11 and self.node_id in partition.state.isr):
            raise self.not_served(partition)
        return partition

    def leader_hint(self, listener: str, topic: str, topic_id: Uuid, index: int) -> LeaderHint | None:
        """Where the leader of a partition is, if there is one on the listener that the client uses."""
        image = self.cluster.image
        found = image.topics.get(topic_id) or image.topic(topic)
        state = found.partitions.get(index) if found is not None else None
        if state is None:
            return None
        leader = self.cluster.nodes.get(state.leader)
        endpoint = leader.endpoints.get(listener) if leader is not None else None
        if leader is None or endpoint is None:
            return None
        return LeaderHint(state.leader, state.leader_epoch, endpoint.host or "localhost", endpoint.port, leader.rack)

    def preferred_replica(self, partition: Partition, rack: str, call: Call) -> int | None:
        """A follower in the client's own rack, where the broker is told to prefer one (KIP-392)."""
        selector = self.config("replica.selector.class")
        if not rack or call.version < 11 or partition.state.leader != self.node_id:
            return None
        if not isinstance(selector, str) or not selector.endswith("RackAwareReplicaSelector") or rack == self.rack:
            return None
        for replica in partition.state.replicas:
            node = self.cluster.nodes.get(replica)
            if node is not None and node.rack == rack and replica in partition.state.isr:
                return replica
        return None

    # Who connects.

    def after_failed_authentication(self, session: Session, refusal: R) -> Pending[R]:
        """The refusal, after the pause that makes guessing slow; then the connection ends."""
        session.closing = True
        answer: Pending[R] = Pending(lambda: timer.cancel())
        pause = self.config_int("connection.failed.authentication.delay.ms") / 1000
        if not pause:
            answer.complete(refusal)
            return answer
        timer = self.cluster.world.clock.call_later(pause, lambda: answer.complete(refusal))
        return answer

    # Writing.

    def when_durable(self, logs: Sequence[Log], response: R, failed: Callable[[], R]) -> Pending[R]:
        """The response, once what was appended to these logs survives a loss of power; `failed()` if it may not.

        A failed fsync takes the directory offline, and what it held must not be acknowledged.
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
            except KafkaError as error:  # the directory is offline already, perhaps through another of these logs
                done(OSError(error.message))
        return pending
