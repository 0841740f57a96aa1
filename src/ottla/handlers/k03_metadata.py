"""Metadata (3): brokers, controller, topics and the leaders of their partitions.

v0 requests all topics with an empty list, later versions with null. v4 lets clients forbid automatic creation, v5 adds
offline replicas, v7 leader epochs, v8 authorized operations, v9 is flexible, v10 adds topic ids, v12 allows requests by
id alone, v13 adds an error of the whole response.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.metadata.partition_view import PartitionView
from ottla.broker.metadata.topic_cache import EncodedMetadata, encode_topics
from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.cluster.topic_names import validate_topic_name
from ottla.handlers import access
from ottla.handlers.registry import api, kafka_error
from ottla.pieces import run_in_pieces
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from ottla.broker.session import Call
    from ottla.cluster.partitions.state import Topic
    from ottla.pending import Pending
    from ottla.protocol.schema import Uuid

log = logging.getLogger(__name__)

# Units of work for `run_in_pieces`, in microseconds.
DESCRIBE_WORK = 10
CREATE_WORK = 500
INLINE_TOPICS = 500
ENCODED_TOGETHER = 100

TOPIC_IDS = 12
"""The first version that describes topics by id."""

LISTENER_ERRORS_FROM = 6
"""The first version that distinguishes a leader without the client's listener from no leader."""


def on_error(request: MetadataRequest, version: int, code: ErrorCode, message: str | None) -> MetadataResponse:
    """Return the error for every named topic."""
    return MetadataResponse(
        error_code=code,
        topics=[
            MetadataResponseTopic(error_code=code, name=topic.name or "", topic_id=topic.topic_id)
            for topic in request.topics or []
        ],
    )


@api(
    3,
    versions=(0, 13),
    acl=access.per_resource(
        access.on_topic(AclOperation.DESCRIBE),
        access.on_topic(AclOperation.CREATE),
        access.on_cluster(AclOperation.CREATE),
    ),
    on_error=on_error,
)
def metadata(call: Call, request: MetadataRequest) -> MetadataResponse | EncodedMetadata | Pending[Any]:
    """Describe the cluster as clients of this listener can reach it."""
    runtime = call.broker.runtime
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in runtime.reachable_brokers(call.session.listener)
        ],
        cluster_id=runtime.cluster_id,
        controller_id=runtime.controller.node_id,
    )
    if call.version <= 10 and request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = call.cluster_operations()
    if request.topics is None or (call.version == 0 and not request.topics):
        all_topics = _describe_all(call, response, with_operations=request.include_topic_authorized_operations)
        return run_in_pieces(runtime.world.clock, all_topics, partial(_failed, call, request))
    if not request.topics:
        return response
    named = _describe_named(call, request, response, request.topics)
    return run_in_pieces(runtime.world.clock, named, partial(_failed, call, request))


def _failed(call: Call, request: MetadataRequest, error: Exception) -> MetadataResponse:
    log.exception("Metadata v%d failed", call.version, exc_info=error)
    return on_error(request, call.version, *kafka_error(error))


class _Topics:
    """The topics of a response: described, or encoded at once if they are many, so that no objects are left to free."""

    def __init__(self, version: int, *, many: bool) -> None:
        self._version = version
        self._many = many
        self._described: list[MetadataResponseTopic] = []
        self._encoded: list[bytes] = []
        self._count = 0

    def add(self, topic: MetadataResponseTopic) -> None:
        """Add a topic."""
        self._described.append(topic)
        if self._many and len(self._described) == ENCODED_TOGETHER:
            self._encode()

    def extend(self, others: _Topics) -> None:
        """Add the topics of another list, which must not be used afterwards."""
        for topic in others._described:
            self.add(topic)
        if others._encoded:
            self._encode()
            self._encoded += others._encoded
            self._count += others._count

    def complete(self, response: MetadataResponse) -> MetadataResponse | EncodedMetadata:
        """Return the response with these topics."""
        if not self._many:
            response.topics = self._described
            return response
        self._encode()
        return EncodedMetadata(response, self._count, self._encoded)

    def _encode(self) -> None:
        if self._described:
            self._encoded.append(encode_topics(self._described, self._version))
            self._count += len(self._described)
            self._described = []


def _describe_all(
    call: Call, response: MetadataResponse, *, with_operations: bool
) -> Generator[int, None, MetadataResponse | EncodedMetadata]:
    """Describe all topics that the caller may see; yield the work done.

    Descriptions are encoded once and cached until their topic changes, because clients request them periodically.
    """
    runtime = call.broker.runtime
    topics = list(runtime.image.topics.values())
    view = _view(call)
    if with_operations:
        described = _Topics(call.version, many=len(topics) > INLINE_TOPICS)
        for topic in topics:
            if _may_describe(call, topic.name):
                reply = _describe(view, topic)
                reply.topic_authorized_operations = call.authorized_operations(ResourceType.TOPIC, topic.name)
                described.add(reply)
            yield DESCRIBE_WORK
        return described.complete(response)
    descriptions = runtime.topic_descriptions
    session = call.session
    view_key = (call.version, session.listener, view.directory_offline)
    response_key = view_key if runtime.authorizer is None else (*view_key, session.principal, session.host)
    known_response = descriptions.response(response_key)
    if known_response is None:
        generation = descriptions.generation
        encoded = []
        for topic in topics:
            if _may_describe(call, topic.name):
                known = descriptions.topics(view_key)
                piece = known.get(topic.id)
                if piece is None:
                    piece = encode_topics([_describe(view, topic)], call.version)
                    if generation == descriptions.generation:
                        known[topic.id] = piece
                    yield DESCRIBE_WORK
                encoded.append(piece)
            yield 1
        known_response = len(encoded), b"".join(encoded)
        descriptions.keep_response(response_key, generation, *known_response)
    return EncodedMetadata(response, known_response[0], [known_response[1]])


def _describe_named(
    call: Call, request: MetadataRequest, response: MetadataResponse, requested: list[MetadataRequestTopic]
) -> Generator[int, None, MetadataResponse | EncodedMetadata]:
    """Describe topics that are named, or given by id; yield the work done."""
    ids, names = yield from _identities(call, requested)
    many = len(requested) > INLINE_TOPICS
    while many and requested:  # Freed in pieces: freeing many objects at once would block the loop.
        del requested[-ENCODED_TOGETHER:]
        yield ENCODED_TOGETHER
    if ids:
        topics = yield from _by_id(call, request, ids, many=many)
    else:
        topics = yield from _by_name(call, request, names, many=many)
    return topics.complete(response)


def _identities(
    call: Call, requested: list[MetadataRequestTopic]
) -> Generator[int, None, tuple[dict[Uuid, None], dict[str, None]]]:
    """Return the ids and the names of a request; if there is an id, names are ignored."""
    ids: dict[Uuid, None] = {}
    names: dict[str, None] = {}
    nameless = False
    for topic in requested:
        if topic.name is not None:
            names[topic.name] = None
        elif call.version < TOPIC_IDS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Topic name can not be null for version {call.version}")
        else:
            nameless = True
        if topic.topic_id != ZERO_UUID:
            if call.version < TOPIC_IDS:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"Topic IDs are not supported in requests for version {call.version}"
                )
            ids[topic.topic_id] = None
        yield 1
    if nameless and not ids:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A topic needs a name or an id")
    return ids, names


def _may_describe(call: Call, name: str) -> bool:
    return call.may_topic(AclOperation.DESCRIBE, name)


def _refused(name: str | None, topic_id: Uuid = ZERO_UUID, internal: bool = False) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name, topic_id=topic_id, is_internal=internal
    )


def _by_name(
    call: Call, request: MetadataRequest, names: Iterable[str], *, many: bool
) -> Generator[int, None, _Topics]:
    """Describe topics by name, in Kafka's order: known ones, unknown ones, those that the caller may not see."""
    image = call.broker.runtime.image
    view = _view(call)
    known, hidden = _Topics(call.version, many=many), _Topics(call.version, many=many)
    missing = []
    for name in names:
        if not _may_describe(call, name):
            hidden.add(_refused(name))
        elif (topic := image.topic(name)) is not None:
            known.add(_with_operations(call, request, _describe(view, topic)))
        else:
            missing.append(name)
        yield DESCRIBE_WORK
    for name in missing:
        known.add(_with_operations(call, request, _missing(call, request, name)))
        yield DESCRIBE_WORK if image.topic(name) is None else CREATE_WORK
    known.extend(hidden)
    return known


def _by_id(call: Call, request: MetadataRequest, ids: Iterable[Uuid], *, many: bool) -> Generator[int, None, _Topics]:
    """Describe topics by id, in Kafka's order: unknown ones, known ones, those that the caller may not see.

    An id is not secret, a name is: a refused topic is shown without its name.
    """
    topics = call.broker.runtime.image.topics
    view = _view(call)
    unknown, known, hidden = (_Topics(call.version, many=many) for _ in range(3))
    for topic_id in ids:
        topic = topics.get(topic_id)
        if topic is None:
            unknown.add(MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id))
        elif _may_describe(call, topic.name):
            known.add(_with_operations(call, request, _describe(view, topic)))
        else:
            hidden.add(_refused(None, topic.id))
        yield DESCRIBE_WORK
    unknown.extend(known)
    unknown.extend(hidden)
    return unknown


def _with_operations(call: Call, request: MetadataRequest, topic: MetadataResponseTopic) -> MetadataResponseTopic:
    if (
        request.include_topic_authorized_operations
        and topic.name is not None
        and topic.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED
    ):
        topic.topic_authorized_operations = call.authorized_operations(ResourceType.TOPIC, topic.name)
    return topic


def _missing(call: Call, request: MetadataRequest, name: str) -> MetadataResponseTopic:
    """Return UNKNOWN_TOPIC_OR_PARTITION, and create the topic if allowed: it exists for the client's next request."""
    broker = call.broker
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    allowed = call.version < 4 or request.allow_auto_topic_creation
    try:
        validate_topic_name(name)
    except KafkaError as error:
        code = error.code
    else:
        if allowed and broker.config_bool("auto.create.topics.enable"):
            if not call.may_cluster(AclOperation.CREATE) and not call.may_topic(AclOperation.CREATE, name):
                return _refused(name, internal=broker.runtime.is_internal(name))
            # Metadata does not report why a creation failed; CreateTopics does.
            with suppress(KafkaError):
                broker.runtime.create_topic(name)
    return MetadataResponseTopic(error_code=code, name=name, is_internal=broker.runtime.is_internal(name))


def _view(call: Call) -> PartitionView:
    return PartitionView(
        call.broker.runtime, call.session.listener, listener_errors=call.version >= LISTENER_ERRORS_FROM
    )


def _describe(view: PartitionView, topic: Topic) -> MetadataResponseTopic:
    """Describe a topic as clients of the view's listener can reach it."""
    partitions = []
    for index, state in topic.partitions.items():
        leader, error = view.leader(state)
        partitions.append(
            MetadataResponsePartition(
                error_code=error,
                partition_index=index,
                leader_id=leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.isr),
                offline_replicas=view.offline_replicas(state),
            )
        )
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=view.runtime.is_internal(topic.name),
        partitions=partitions,
    )
