"""Metadata (3): brokers, controller, topics and who leads their partitions.

v0 asks for all topics with an empty list, later versions with null. v4 lets clients forbid automatic creation, v5 adds
offline replicas, v7 leader epochs, v8 authorized operations, v9 is flexible, v10 adds topic ids, v12 allows asking by
id alone, v13 adds an error of the whole answer.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ottla.broker.partition_view import PartitionView
from ottla.cluster.acls import AclOperation, ResourceType
from ottla.cluster.names import validate_topic_name
from ottla.handlers import access
from ottla.handlers.registry import api
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
    from collections.abc import Callable, Iterable

    from ottla.broker.session import Call
    from ottla.cluster.registrations import Topic
    from ottla.protocol.schema import Uuid

LISTENER_ERRORS_FROM = 6
"""The first version that distinguishes a leader without the client's listener from no leader."""


def on_error(request: MetadataRequest, version: int, code: ErrorCode, message: str | None) -> MetadataResponse:
    """Every topic that was named failed."""
    return MetadataResponse(
        error_code=code,
        topics=[
            MetadataResponseTopic(error_code=code, name=each.name or "", topic_id=each.topic_id)
            for each in request.topics or []
        ],
    )


@api(
    3,
    versions=(0, 13),
    acl=access.each(
        access.on_topic(AclOperation.DESCRIBE),
        access.on_topic(AclOperation.CREATE),
        access.on_cluster(AclOperation.CREATE),
    ),
    on_error=on_error,
)
def metadata(call: Call, request: MetadataRequest) -> MetadataResponse:
    """Describe the cluster as this node's clients can reach it."""
    cluster = call.broker.cluster
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in cluster.reachable_brokers(call.session.listener)
        ],
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller.node_id,
    )
    wanted = request.topics
    if call.version <= 10 and request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = call.cluster_operations()
    if wanted is None or (call.version == 0 and not wanted):
        topics = cluster.image.topics.values()
        describe = _describer(call)
        response.topics = [describe(topic) for topic in topics if _sees(call, topic.name)]
    elif ids := _ids(call, wanted):
        response.topics = _by_id(call, ids)
    else:
        response.topics = _by_name(call, request, dict.fromkeys(each.name for each in wanted if each.name is not None))
    if request.include_topic_authorized_operations:
        for each in response.topics:
            if each.name is not None and each.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                each.topic_authorized_operations = call.authorized_operations(ResourceType.TOPIC, each.name)
    return response


def _sees(call: Call, name: str) -> bool:
    return call.may_topic(AclOperation.DESCRIBE, name)


def _refused(name: str | None, topic_id: Uuid = ZERO_UUID, internal: bool = False) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name, topic_id=topic_id, is_internal=internal
    )


def _ids(call: Call, wanted: list[MetadataRequestTopic]) -> list[Uuid]:
    """The ids that a request names; one is enough for its names not to count."""
    if call.version < 12:
        for each in wanted:
            if each.name is None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Topic name can not be null for version {call.version}")
            if each.topic_id != ZERO_UUID:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"Topic IDs are not supported in requests for version {call.version}"
                )
    ids = list(dict.fromkeys(each.topic_id for each in wanted if each.topic_id != ZERO_UUID))
    if not ids and any(each.name is None for each in wanted):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A topic needs a name or an id")
    return ids


def _by_name(call: Call, request: MetadataRequest, names: Iterable[str]) -> list[MetadataResponseTopic]:
    """Topics by their names, in the order in which Kafka tells them: known ones, unknown ones, others' ones."""
    image = call.broker.cluster.image
    describe = _describer(call)
    found, missing, hidden = [], [], []
    for name in names:
        if not _sees(call, name):
            hidden.append(_refused(name))
        elif (topic := image.topic(name)) is not None:
            found.append(describe(topic))
        else:
            missing.append(name)
    return found + [_missing(call, request, name) for name in missing] + hidden


def _by_id(call: Call, ids: list[Uuid]) -> list[MetadataResponseTopic]:
    """Topics by their ids, the unknown ones first, as Kafka tells them. An id is no secret, a name is."""
    topics = call.broker.cluster.image.topics
    unknown = [
        MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
        for topic_id in ids
        if topic_id not in topics
    ]
    known = [topics[topic_id] for topic_id in ids if topic_id in topics]
    describe = _describer(call)
    found = [describe(topic) for topic in known if _sees(call, topic.name)]
    hidden = [_refused(None, topic.id) for topic in known if not _sees(call, topic.name)]
    return unknown + found + hidden


def _missing(call: Call, request: MetadataRequest, name: str) -> MetadataResponseTopic:
    """Tell that a topic is not there, and make it if that is allowed: it is there when the client asks again."""
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
                return _refused(name, internal=broker.cluster.is_internal(name))
            # Why it could not be made is not told here: CreateTopics would.
            with suppress(KafkaError):
                broker.cluster.create_topic(name)
    return MetadataResponseTopic(error_code=code, name=name, is_internal=broker.cluster.is_internal(name))


def _describer(call: Call) -> Callable[[Topic], MetadataResponseTopic]:
    """Return a function that describes a topic as clients of the call's listener can reach it."""
    cluster = call.broker.cluster
    view = PartitionView(cluster, call.session.listener, listener_errors=call.version >= LISTENER_ERRORS_FROM)

    def describe(topic: Topic) -> MetadataResponseTopic:
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
            is_internal=cluster.is_internal(topic.name),
            partitions=partitions,
        )

    return describe
