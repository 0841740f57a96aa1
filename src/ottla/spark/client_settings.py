"""What reads and writes do with each setting of Kafka's Java clients, given as the option `kafka.NAME`.

Every setting is honoured, refused with a reason, or answered with one warning. docs/spark-options.md is generated from
this table (tools/generate_spark_options.py), and a test compares its names with those of Kafka's clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from ottla.client.auth import SECURITY_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Iterable

Side = Literal["read", "write"]


class Answer(NamedTuple):
    """What happens to a setting: `kind` is honoured, refused or ignored; `reason` is for the last two."""

    kind: Literal["honoured", "refused", "ignored"]
    reason: str = ""


HONOURED: Final = Answer("honoured")
_HONOURED: Final[dict[Side, frozenset[str]]] = {
    "read": frozenset(
        {
            "bootstrap.servers",
            "client.id",
            "client.rack",
            "fetch.max.bytes",
            "fetch.max.wait.ms",
            "fetch.min.bytes",
            "isolation.level",
            "max.partition.fetch.bytes",
            "request.timeout.ms",
        }
    ),
    "write": frozenset(
        {
            "acks",
            "batch.size",
            "bootstrap.servers",
            "client.id",
            "compression.type",
            "enable.idempotence",
            "request.timeout.ms",
            "transaction.timeout.ms",
        }
    ),
}
_NO_CLASSES: Final = "ottla loads no Java classes"
_REFUSED: Final[dict[str, str]] = {
    "bootstrap.controllers": "give brokers as kafka.bootstrap.servers",
    "config.providers": "write the value itself, or let the environment of Spark resolve it",
    "interceptor.classes": _NO_CLASSES,
    "sasl.client.callback.handler.class": _NO_CLASSES,
    "sasl.kerberos.service.name": "the mechanism GSSAPI is not supported",
    "sasl.login.callback.handler.class": _NO_CLASSES,
    "sasl.login.class": _NO_CLASSES,
    "sasl.oauthbearer.jwt.retriever.class": _NO_CLASSES,
    "sasl.oauthbearer.jwt.validator.class": _NO_CLASSES,
    "security.providers": _NO_CLASSES,
    "ssl.engine.factory.class": _NO_CLASSES,
    "ssl.provider": _NO_CLASSES,
    **{
        f"sasl.oauthbearer.assertion.{name}": "client assertions are not supported: use the client's id and secret"
        for name in (
            "algorithm",
            "claim.aud",
            "claim.exp.seconds",
            "claim.iss",
            "claim.jti.include",
            "claim.nbf.seconds",
            "claim.sub",
            "file",
            "private.key.file",
            "private.key.passphrase",
            "template.file",
        )
    },
}
_REFUSED_HERE: Final[dict[Side, dict[str, str]]] = {
    "read": {
        "auto.offset.reset": "use startingOffsets",
        "enable.auto.commit": "use groupId to commit what was processed",
        "key.deserializer": "keys are bytes: cast or decode the column",
        "value.deserializer": "values are bytes: cast or decode the column",
    },
    "write": {
        "key.serializer": "keys are bytes or strings: encode the column",
        "partitioner.class": "give the column partition",
        "partitioner.ignore.keys": "give the column partition",
        "transaction.two.phase.commit.enable": "use exactlyOnce",
        "transactional.id": "use exactlyOnce, which chooses its transactional ids",
        "value.serializer": "values are bytes or strings: encode the column",
    },
}
# Settings without an effect on the result, by the reason that the warning has: of consumers, all clients, producers.
_IGNORED_READ: Final[dict[str, tuple[str, ...]]] = {
    "reads join no group; the option groupId commits the offsets of a stream": (
        "auto.commit.interval.ms",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "internal.leave.group.on.close",
        "max.poll.interval.ms",
        "partition.assignment.strategy",
        "session.timeout.ms",
    ),
    "a task takes whole responses: use kafka.max.partition.fetch.bytes": ("max.poll.records",),
    "every CRC is checked": ("check.crcs",),
    "reads create no topics": ("allow.auto.create.topics",),
    "a pattern selects no internal topics": ("exclude.internal.topics",),
    "reads are not those of a share consumer": ("share.acknowledgement.mode", "share.acquire.mode"),
    "last stable offsets are required where read_committed is set": (
        "internal.throw.on.fetch.stable.offset.unsupported",
    ),
}
_IGNORED: Final[dict[str, tuple[str, ...]]] = {
    "ottla's client connects, reconnects and retries by its own rules until kafka.request.timeout.ms is over": (
        "client.dns.lookup",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "metadata.max.age.ms",
        "metadata.max.idle.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    ),
    "ottla's client has no Java metrics; Spark's progress and metrics have the rows": (
        "auto.include.jmx.reporter",
        "enable.metrics.push",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
    ),
    "the token is fetched at each login, without background refresh": (
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
    ),
    "the broker validates tokens; the client only passes them on": (
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
    ),
    "client id and secret are always URL-encoded": ("sasl.oauthbearer.header.urlencode",),
    "the mechanism GSSAPI is not supported": (
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
    ),
    "TLS is Python's: use kafka.ssl.enabled.protocols for its versions": (
        "ssl.keymanager.algorithm",
        "ssl.protocol",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    ),
}
_IGNORED_WRITE: Final[dict[str, tuple[str, ...]]] = {
    "a task sends full batches at once and waits for all of them": (
        "buffer.memory",
        "delivery.timeout.ms",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.request.size",
    ),
    "the codec's default level is used": (
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
    ),
    "records without key go to one partition per batch in turn": (
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
    ),
}
_OTHER_SIDE: Final[dict[Side, tuple[Side, str]]] = {
    "read": ("write", "it is a setting of producers"),
    "write": ("read", "it is a setting of consumers"),
}


def _by_name(reasons: dict[str, tuple[str, ...]]) -> dict[str, str]:
    return {name: reason for reason, names in reasons.items() for name in names}


_REASONS: Final = _by_name(_IGNORED)
_REASONS_HERE: Final[dict[Side, dict[str, str]]] = {"read": _by_name(_IGNORED_READ), "write": _by_name(_IGNORED_WRITE)}
_TABLES: Final = (_HONOURED, _REFUSED_HERE, _REASONS_HERE)
NAMES: Final = frozenset(
    {
        *SECURITY_PROPERTIES,
        *_REFUSED,
        *_REASONS,
        *(name for table in _TABLES for names in table.values() for name in names),
    }
)
"""Every setting that has an answer: those of Kafka's Java clients, and librdkafka's security settings."""


def answer(name: str, side: Side) -> Answer | None:
    """Return what a read or write does with a setting of Kafka's clients; None if it is not one."""
    if name in SECURITY_PROPERTIES or name in _HONOURED[side]:
        return HONOURED
    reason = _REFUSED_HERE[side].get(name) or _REFUSED.get(name)
    if reason is not None:
        return Answer("refused", reason)
    reason = _REASONS_HERE[side].get(name) or _REASONS.get(name)
    other, foreign = _OTHER_SIDE[side]
    if reason is None and any(name in table[other] for table in _TABLES):
        reason = foreign
    return None if reason is None else Answer("ignored", reason)


def option_names(names: Iterable[str] = NAMES) -> list[str]:
    """Return settings by their names as options."""
    return sorted(f"kafka.{name}" for name in names)
