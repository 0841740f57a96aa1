"""Fills a small cluster with every kind of state through Kafka's clients, and reads all of it back from a broker.

The same steps run against Apache Kafka, whose directory became the fixtures, and against ottla; what each broker
then says about the directory must be the same.
"""

from __future__ import annotations

import time
from base64 import b64encode
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from ottla.cluster.internal_topics import partition_for
from tests.markers import markers_written

from .java_client import Admin, JavaClients, Record, sasl_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Broker(Protocol):
    """What the steps need to know of a running node."""

    log_dir: Path

    @property
    def bootstrap(self) -> str:
        """Where clients connect."""

    @property
    def sasl_bootstrap(self) -> str:
        """Where clients connect that log in."""


CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
START = 1_700_000_000_000  # the create time of the first record

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:admin",
    "delegation.token.secret.key": "a secret for fixtures",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "2",
    "metadata.log.max.record.bytes.between.snapshots": "12000",
    "metadata.max.idle.interval.ms": "2000",
    "log.cleaner.backoff.ms": "200",
    "group.coordinator.append.linger.ms": "0",
    # Members that are left behind stay members until every broker was asked about them.
    "group.consumer.max.session.timeout.ms": "1800000",
    "group.consumer.session.timeout.ms": "1800000",
    "group.share.max.record.lock.duration.ms": "1800000",
    "group.share.record.lock.duration.ms": "1800000",
}


def write_metadata(node: Broker, clients: JavaClients) -> None:
    """Provoke as many kinds of metadata records as one node can."""
    write_topics(node, clients)
    write_configs(node, clients)
    write_acls(node, clients)
    write_users(node, clients)
    write_quotas(node, clients)
    write_tokens(node, clients)


def write_topics(node: Broker, clients: JavaClients) -> None:
    """Create the topics that the other steps write to, and one that is deleted."""
    admin = clients.admin(node.bootstrap)
    admin.create_topic("orders", 2)
    admin.call("create_partitions", topics={"orders": 3})
    for codec in CODECS:
        admin.create_topic(f"codec-{codec}", 1)
    admin.create_topic("appended", 1, message_timestamp_type="LogAppendTime")
    admin.create_topic("segmented", 1, segment_ms="200", index_interval_bytes="200", retention_ms="-1")
    admin.create_topic("trimmed", 1)
    admin.create_topic("transactional", 2)
    admin.create_topic("open", 1)
    cleaned = {
        "cleanup_policy": "compact",
        "segment_ms": "100",
        "min_cleanable_dirty_ratio": "0.01",
        "index_interval_bytes": "200",
    }
    admin.create_topic("compacted", 1, **cleaned)
    admin.create_topic("compacted-transactional", 1, **cleaned)
    admin.create_topic("deleted", 1)
    with clients.producer(node.bootstrap, enable_idempotence="false") as producer:
        producer.send([Record("deleted", b"gone")])
    admin.call("delete_topics", topics=["deleted"])


def write_configs(node: Broker, clients: JavaClients) -> None:
    """Set and delete configs of every kind of resource."""
    admin = clients.admin(node.bootstrap)

    def change(kind: str, name: str, *ops: list[str]) -> None:
        admin.call("alter_configs", changes=[{"resource": [kind, name], "ops": list(ops)}])

    change("TOPIC", "orders", ["SET", "retention.ms", "-1"], ["SET", "max.message.bytes", "2000000"])
    change("TOPIC", "orders", ["DELETE", "max.message.bytes"])
    change("BROKER", "1", ["SET", "log.cleaner.threads", "1"])
    # The timestamps are old: retention must not delete the records when a broker opens the directory.
    change("BROKER", "", ["SET", "log.retention.ms", "-1"])
    change("GROUP", "consumer-live", ["SET", "consumer.session.timeout.ms", "1700000"])
    change("GROUP", "share-group", ["SET", "share.auto.offset.reset", "earliest"])
    change("CLIENT_METRICS", "subscription", ["SET", "interval.ms", "30000"])


def write_acls(node: Broker, clients: JavaClients) -> None:
    """Create ACLs of every kind of resource and delete one."""
    admin = clients.admin(node.bootstrap)

    def acl(kind: str, name: str, operation: str, principal: str, **more: str) -> dict[str, str]:
        return {"type": kind, "name": name, "operation": operation, "principal": principal, **more}

    acls = [
        acl("TOPIC", "orders", "READ", "User:alice"),
        acl("TOPIC", "ord", "WRITE", "User:bob", pattern="PREFIXED", host="127.0.0.1"),
        acl("GROUP", "*", "READ", "User:*"),
        acl("CLUSTER", "kafka-cluster", "ALTER", "User:mallory", permission="DENY"),
        acl("TRANSACTIONAL_ID", "tx", "ALL", "User:alice"),
        acl("USER", "alice", "CREATE_TOKENS", "User:carol"),
        acl("DELEGATION_TOKEN", "some-token", "DESCRIBE", "User:alice"),
        acl("TOPIC", "removed", "READ", "User:alice"),
    ]
    admin.call("create_acls", acls=acls)
    admin.call("delete_acls", filter={"type": "TOPIC", "name": "removed"})


def write_users(node: Broker, clients: JavaClients) -> None:
    """Create SCRAM users, each mechanism, and delete one."""
    admin = clients.admin(node.bootstrap)
    salt = b64encode(b"salt for fixture").decode()
    users: list[dict[str, Any]] = [
        {"user": "alice", "mechanism": mechanism, "password": "alice-secret", "salt": salt}
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    ]
    users.append({"user": "bob", "mechanism": "SCRAM-SHA-512", "password": "bob-secret", "iterations": 8192})
    users.append({"user": "gone", "mechanism": "SCRAM-SHA-256", "password": "gone"})
    for user in users:
        admin.call("alter_scram", users=[user])
    admin.call("alter_scram", users=[{"user": "gone", "mechanism": "SCRAM-SHA-256"}])


def write_quotas(node: Broker, clients: JavaClients) -> None:
    """Set quotas for every kind of entity and remove one."""
    admin = clients.admin(node.bootstrap)
    quotas: list[dict[str, Any]] = [
        {"entity": {"user": "alice"}, "ops": {"producer_byte_rate": 1048576}},
        {"entity": {"user": "alice", "client-id": "app"}, "ops": {"consumer_byte_rate": 2097152}},
        {"entity": {"user": None}, "ops": {"request_percentage": 50.5}},
        {"entity": {"client-id": None}, "ops": {"controller_mutation_rate": 100}},
        {"entity": {"ip": "127.0.0.9"}, "ops": {"connection_creation_rate": 10}},
        {"entity": {"user": "gone"}, "ops": {"request_percentage": 5}},
    ]
    admin.call("alter_quotas", changes=quotas)
    admin.call("alter_quotas", changes=[{"entity": {"user": "gone"}, "ops": {"request_percentage": None}}])


def write_tokens(node: Broker, clients: JavaClients) -> None:
    """Create, renew and expire delegation tokens."""
    secured = clients.admin(node.sasl_bootstrap, **sasl_config("PLAIN", "admin", "admin-secret"))
    secured.call("create_token", renewers=["User:alice"], max_lifetime_ms=600_000_000)
    second = secured.call("create_token", owner="User:alice", renewers=["User:admin"])
    third = secured.call("create_token")
    await_that("the tokens are published", lambda: len(secured.call("describe_tokens")) == 3)
    secured.call("renew_token", hmac=second["hmac"])
    secured.call("expire_token", hmac=third["hmac"], period_ms=-1)
    await_that("a token is gone", lambda: len(secured.call("describe_tokens")) == 2)


def sample_records(topic: str, partition: int = 0) -> list[Record]:
    """Return records with everything that may be null or empty."""
    pick: dict[str, Any] = {"partition": partition}
    return [
        Record(topic, b"value", b"key", (("trace", b"abc"),), timestamp=START, **pick),
        Record(topic, None, b"key", timestamp=START + 1, **pick),
        Record(topic, b"no key", None, timestamp=START + 2, **pick),
        Record(topic, b"", b"", (("empty", b""), ("null", None), ("", b"x"), ("trace", b"2")), timestamp=START, **pick),
        Record(topic, bytes(range(256)), "schlüssel".encode(), timestamp=START + 5, **pick),
        Record(topic, b"a" * 2000, b"long", timestamp=START + 4, **pick),
    ]


def write_records(node: Broker, clients: JavaClients) -> None:
    """Fill the plain topics."""
    for codec in CODECS:
        with clients.producer(node.bootstrap, compression_type=codec, linger_ms="50") as producer:
            producer.send(sample_records(f"codec-{codec}"))
    with clients.producer(node.bootstrap, linger_ms="0", batch_size="0") as producer:
        for partition in range(3):
            producer.send(sample_records("orders", partition)[: 2 * partition + 1])
        producer.send([Record("appended", b"%d" % number, timestamp=START) for number in range(3)])
        producer.send([Record("trimmed", b"%d" % number, timestamp=START + number) for number in range(10)])
    with clients.producer(node.bootstrap, enable_idempotence="false", acks="1", linger_ms="0") as producer:
        for number in range(24):
            producer.send([Record("segmented", b"value %d" % number, b"key", timestamp=int(time.time() * 1000))])
            if number % 8 == 7:
                pause(0.25)  # longer than segment.ms: the next append rolls
    clients.admin(node.bootstrap).call("delete_records", offsets={"trimmed:0": 4})


def write_transactions(node: Broker, clients: JavaClients) -> None:
    """Commit, abort and leave open."""
    with clients.producer(node.bootstrap, transactional_id="tx-one") as producer:
        producer.init_transactions()
        for number, end in enumerate(("commit", "abort", "commit", "abort")):
            producer.begin()
            for partition in range(2):
                value = f"{end} {number}".encode()
                record = Record("transactional", value, b"%d" % number, partition=partition, timestamp=START + number)
                producer.send([record])
            if number < 2:
                producer.send_offsets({"orders:0": {"offset": number + 1, "metadata": end}}, group="tx-group")
            producer.call(end)
    with clients.producer(node.bootstrap, transactional_id="tx-gzip", compression_type="gzip") as producer:
        producer.init_transactions()
        producer.begin()
        producer.send([Record("transactional", b"zipped", partition=1, timestamp=START + 9)])
        producer.commit()
    left = clients.producer(node.bootstrap, transactional_id="tx-open", transaction_timeout_ms="900000")
    left.init_transactions()
    left.begin()
    left.send([Record("open", b"not decided", timestamp=START)])
    left.send_offsets({"orders:1": 1}, group="tx-open-group")
    markers_written(node.bootstrap)


def write_compacted(node: Broker, clients: JavaClients) -> None:
    """Write two topics until the cleaner has been through both."""
    with (
        clients.producer(node.bootstrap) as plain,
        clients.producer(node.bootstrap, transactional_id="tx-compacted") as producer,
    ):
        producer.init_transactions()
        for turn in range(4):
            for key in ("a", "b", "c"):
                plain.send([Record("compacted", f"{key}{turn}".encode(), key.encode(), (("turn", b"%d" % turn),))])
            plain.send([Record("compacted", b"once %d" % turn, b"once-%d" % turn)])
            if turn == 1:
                plain.send([Record("compacted", None, b"b")])
            producer.begin()
            for key in ("a", "b"):
                producer.send([Record("compacted-transactional", f"{key}{turn}".encode(), key.encode())])
            producer.call("abort" if turn % 2 else "commit")
            markers_written(node.bootstrap)
            pause(0.15)  # longer than segment.ms: the next append rolls
        plain.send([Record("compacted", b"last", b"last")])
        producer.begin()
        producer.send([Record("compacted-transactional", b"last", b"last")])
        producer.commit()
    markers_written(node.bootstrap)
    checkpoint = node.log_dir / "cleaner-offset-checkpoint"

    def cleaned() -> bool:
        lines = checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []
        done = {line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in lines}
        return done.get("compacted 0", 0) >= 17 and done.get("compacted-transactional 0", 0) >= 12

    await_that("the cleaner is through", cleaned)


STAYS = {"max_poll_interval_ms": "3600000"}  # members that stay without polling


def write_groups(node: Broker, clients: JavaClients) -> None:
    """Groups of each kind: empty, with members, deleted."""
    admin = clients.admin(node.bootstrap)
    for protocol in ("classic", "consumer"):
        with clients.consumer(node.bootstrap, group_id=f"{protocol}-empty", group_protocol=protocol) as consumer:
            consumer.subscribe("orders")
            consumer.await_assignment(3)
            consumer.commit({"orders:0": {"offset": 1, "metadata": "half way", "leader_epoch": 0}, "orders:2": 3})
        settings = {"group_id": f"{protocol}-live", "group_protocol": protocol, "client_id": "fixture", **STAYS}
        if protocol == "classic":
            settings["session_timeout_ms"] = "1800000"
        live = clients.consumer(node.bootstrap, **settings, group_instance_id=f"static-{protocol}", client_rack="r1")
        live.subscribe("orders", "appended")
        live.await_assignment(4)
        live.commit({"appended:0": 2})
    pattern = clients.consumer(node.bootstrap, group_id="pattern", group_protocol="consumer", **STAYS)
    pattern.call("subscribe", re2="codec-(gzip|zstd)")
    pattern.await_assignment(2)
    admin.call("alter_group_offsets", group="by-admin", offsets={"orders:1": 2})
    admin.call("alter_group_offsets", group="deleted", offsets={"orders:1": 2})
    admin.call("delete_groups", groups=["deleted"])
    admin.call("delete_group_offsets", group="classic-empty", partitions=["orders:2"])


def write_share_groups(node: Broker, clients: JavaClients) -> None:
    """Read with a share group and answer each record in one of three ways."""
    with clients.share_consumer(
        node.bootstrap, group_id="share-group", share_acknowledgement_mode="explicit"
    ) as shared:
        shared.subscribe("orders", "codec-none")
        seen: set[tuple[str, int | None, int | None]] = set()
        while len(seen) < 15:  # every third record is accepted, released and rejected
            records = shared.poll()
            assert records, f"only {len(seen)} of 15 records came"
            responses = ("ACCEPT", "RELEASE", "REJECT")
            marks = [
                {"topic": record.topic, "partition": record.partition, "offset": record.offset}
                | {"type": responses[(record.offset or 0) % 3]}
                for record in records
            ]
            shared.call("acknowledge", records=marks)
            shared.call("commit")
            seen.update((record.topic, record.partition, record.offset) for record in records)


def await_snapshot(node: Broker, clients: JavaClients) -> None:
    """Make the metadata log grow until there is a snapshot that was not there before."""
    admin = clients.admin(node.bootstrap)
    folder = node.log_dir / "__cluster_metadata-0"

    before = set(folder.glob("*.checkpoint"))
    turn = iter(range(10_000))

    def there() -> bool:
        change = {"resource": ["TOPIC", "orders"], "ops": [["SET", "flush.messages", f"{next(turn) + 1000000}"]]}
        admin.call("alter_configs", changes=[change])
        return set(folder.glob("*.checkpoint")) > before

    await_that("a metadata snapshot is written", there)


def collect_facts(node: Broker, clients: JavaClients) -> dict[str, Any]:
    """Ask the running node about everything it holds."""
    run = Asked(node, clients)
    return {name: ask(run) for name, ask in QUESTIONS.items()}


class Asked:
    """A broker to ask, and the answers that other questions need."""

    def __init__(self, node: Broker, clients: JavaClients) -> None:
        self.admin = clients.admin(node.bootstrap)
        self.node = node
        self.clients = clients

    @cached_property
    def topics(self) -> dict[str, Any]:
        """Every topic's description, the internal ones too."""
        described: dict[str, Any] = self.admin.call(
            "describe_topics", topics=list(self.admin.call("list_topics", internal=True))
        )
        return described

    @cached_property
    def partitions(self) -> list[str]:
        """Every partition as "topic:0"."""
        return [
            f"{name}:{partition['partition']}"
            for name, topic in self.topics.items()
            for partition in topic["partitions"]
        ]

    @cached_property
    def groups(self) -> list[dict[str, Any]]:
        """The listing of all groups; a Kafka that has just started leaves out those whose partition is not loaded."""
        count = len(self.topics["__consumer_offsets"]["partitions"])
        names = [f"nobody-{number}" for number in range(10 * count)]
        one_in_each = {partition_for(name, count): name for name in names}
        assert len(one_in_each) == count
        self.admin.call("list_group_offsets", groups=list(one_in_each.values()))  # is asked again until they are there
        listed: list[dict[str, Any]] = self.admin.call("list_groups")
        return listed

    def group_ids(self, *types: str) -> list[str]:
        """The groups of these types."""
        return [group["groupId"] for group in self.groups if group["type"] in types]

    def offsets(self, spec: str | int, **more: Any) -> Any:
        """One kind of offset of every partition."""
        return self.admin.call("list_offsets", partitions=dict.fromkeys(self.partitions, spec), **more)

    def tokens(self) -> Any:
        """The delegation tokens, which only who logged in may see."""
        sasl = sasl_config("PLAIN", "admin", "admin-secret")
        return self.clients.admin(self.node.sasl_bootstrap, **sasl).call("describe_tokens")


# Groups first: members whose clients are gone stay for their session's time after a broker's start, and no longer.
QUESTIONS: dict[str, Callable[[Asked], Any]] = {
    "groups": lambda requested: requested.groups,
    "consumer_groups": lambda requested: requested.admin.call(
        "describe_consumer_groups", groups=requested.group_ids("CLASSIC", "CONSUMER")
    ),
    "cluster": lambda requested: requested.admin.call("describe_cluster"),
    "features": lambda requested: requested.admin.call("describe_features"),
    "quorum": lambda requested: requested.admin.call("describe_quorum"),
    "topics": lambda requested: requested.topics,
    "offsets": lambda requested: {
        "earliest": requested.offsets("earliest"),
        "latest": requested.offsets("latest"),
        "latest_committed": requested.offsets("latest", read_committed=True),
        "max_timestamp": requested.offsets("max_timestamp"),
        str(START + 3): requested.offsets(START + 3),
    },
    "configs": lambda requested: configs(requested.admin, list(requested.topics)),
    "acls": lambda requested: requested.admin.call("describe_acls"),
    "scram": lambda requested: requested.admin.call("describe_scram"),
    "quotas": lambda requested: requested.admin.call("describe_quotas"),
    "tokens": lambda requested: requested.tokens(),
    "share_groups": lambda requested: requested.admin.call(
        "describe_share_groups", groups=requested.group_ids("SHARE")
    ),
    "group_offsets": lambda requested: requested.admin.call(
        "list_group_offsets", groups=requested.group_ids("CLASSIC", "CONSUMER")
    ),
    "share_group_offsets": lambda requested: requested.admin.call(
        "list_share_group_offsets", groups=requested.group_ids("SHARE")
    ),
    "transactions": lambda requested: requested.admin.call(
        "describe_transactions", ids=[name["transactionalId"] for name in requested.admin.call("list_transactions")]
    ),
    "producers": lambda requested: requested.admin.call("describe_producers", partitions=requested.partitions),
    "log_dirs": lambda requested: list(requested.admin.call("describe_log_dirs")["1"].values()),
}


def configs(admin: Admin, topics: list[str]) -> dict[str, Any]:
    """Return what was set on each resource, and every setting of one topic and the broker."""
    resources = [["TOPIC", name] for name in topics]
    resources += [["BROKER", "1"], ["BROKER", ""], ["GROUP", "consumer-live"], ["GROUP", "share-group"]]
    resources += [["CLIENT_METRICS", "subscription"]]
    response = admin.call("describe_configs", resources=resources, synonyms=True)
    whole = {"TOPIC:orders", "GROUP:consumer-live"}
    result: dict[str, Any] = {}
    for resource, entries in response.items():
        result[resource] = {
            name: {key: entry[key] for key in ("value", "source", "isSensitive", "isReadOnly", "type", "synonyms")}
            for name, entry in entries.items()
            if resource in whole or entry["source"].startswith(("DYNAMIC", "STATIC"))
        }
        result[resource].pop("log.dirs", None)
    return result


def collect_records(node: Broker, clients: JavaClients) -> list[dict[str, Any]]:
    """Return every record as the consumer sees it, and whether read_committed shows it."""
    topics = list(clients.admin(node.bootstrap).call("list_topics"))
    committed = clients.read_all(node.bootstrap, topics, isolation_level="read_committed")
    visible = {(record.topic, record.partition, record.offset) for record in committed}
    records = []
    for record in clients.read_all(node.bootstrap, topics):
        line = record.to_json()
        line["offset"] = record.offset
        line["timestamp_type"] = record.timestamp_type
        line["leader_epoch"] = record.leader_epoch
        line["committed"] = (record.topic, record.partition, record.offset) in visible
        records.append(line)
    return records


def pause(seconds: float) -> None:
    """Let real time pass: rolling by time has no other trigger."""
    time.sleep(seconds)


def await_that(what: str, true: Callable[[], bool], timeout: float = 300) -> None:
    """Wait for something that Kafka does by itself."""
    deadline = time.monotonic() + timeout
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout} s until {what}")
        time.sleep(0.1)
