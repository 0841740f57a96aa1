"""Metadata records of a snapshot: features first, then brokers, topics, configs and the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.features import (
    CONTROLLER_REGISTRATION_FROM,
    CORDONED_LOG_DIRS_FROM,
    DELEGATION_TOKENS_FROM,
    DIRECTORIES_FROM,
    METADATA_VERSION,
    SCRAM_FROM,
)
from ottla.protocol.record_schemas.metadata import (
    ClientQuotaRecord,
    ConfigRecord,
    EntityData,
    FeatureLevelRecord,
    ProducerIdsRecord,
    TopicRecord,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.cluster.image import ClusterImage
    from ottla.protocol.record_values import UnknownRecord
    from ottla.protocol.schema import Message


def snapshot_records(image: ClusterImage) -> Iterator[Message | UnknownRecord]:
    """Yield the records whose replay gives this image, in its metadata.version; unknown records come last."""
    level = image.metadata_version
    yield FeatureLevelRecord(name=METADATA_VERSION, feature_level=level)
    for name, feature_level in image.features.items():
        if name != METADATA_VERSION:
            yield FeatureLevelRecord(name=name, feature_level=feature_level)
    for broker in image.brokers.values():
        yield broker.to_record(directories=level >= DIRECTORIES_FROM, cordoned=level >= CORDONED_LOG_DIRS_FROM)
    if level >= CONTROLLER_REGISTRATION_FROM:
        for controller in image.controllers.values():
            yield controller.to_record()
    yield from _topics(image, level)
    for resource, configs in image.configs.items():
        for name, value in configs.items():
            yield ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)
    for entity, quotas in image.client_quotas.items():
        for key, rate in quotas.items():
            entities = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
            yield ClientQuotaRecord(entity=entities, key=key, value=rate, remove=False)
    if image.next_producer_id >= 0:
        yield ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)
    for acl_id, acl in image.acls.items():
        yield acl.to_record(acl_id)
    if level >= SCRAM_FROM:
        for mechanism, users in image.scram.items():
            for user, credential in users.items():
                yield credential.to_record(user, mechanism)
    if level >= DELEGATION_TOKENS_FROM:
        for token in image.delegation_tokens.values():
            yield token.to_record()
    yield from image.unknown


def _topics(image: ClusterImage, level: int) -> Iterator[Message]:
    for topic in image.topics.values():
        yield TopicRecord(name=topic.name, topic_id=topic.id)
        for index, partition in topic.partitions.items():
            yield partition.to_record(topic.id, index, directories=level >= DIRECTORIES_FROM, elr=image.elr_enabled)
