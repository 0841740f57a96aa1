"""Client quotas in the metadata: alter and describe (Kafka's ClientQuotaControlManager). `security` enforces them."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_schemas.metadata import ClientQuotaRecord, EntityData

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.cluster.image import ClusterImage
    from ottla.protocol.messages.k48_describe_client_quotas import ComponentData
    from ottla.protocol.messages.k49_alter_client_quotas import RequestEntryData
    from ottla.protocol.schema import Message


QuotaEntity = tuple[tuple[str, str | None], ...]
"""Pairs of entity type (user, client-id, ip) and name, sorted by type; a name of None is the type's default entity."""


def quota_entity(parts: Mapping[str, str | None]) -> QuotaEntity:
    """Return an entity in canonical form, sorted by type."""
    return tuple(sorted(parts.items()))


USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

_LARGEST: Final[Mapping[str, tuple[str, float]]] = {"INT": ("an INT", 2.0**31 - 1), "LONG": ("a LONG", 2.0**63)}
_USER_AND_CLIENT_KEYS: Final = {
    "producer_byte_rate": "LONG",
    "consumer_byte_rate": "LONG",
    "request_percentage": "DOUBLE",
    "controller_mutation_rate": "DOUBLE",
}
_MATCH_EXACT, _MATCH_DEFAULT, _MATCH_ANY = 0, 1, 2
_IP_KEYS: Final = {"connection_creation_rate": "INT"}


def _refuse(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def alter_client_quotas(
    image: ClusterImage, entries: Sequence[RequestEntryData]
) -> tuple[list[KafkaError | None], list[Message]]:
    """Set and remove quotas; return one result per entry. A refused entry changes nothing."""
    results: list[KafkaError | None] = []
    records: list[Message] = []
    seen: set[QuotaEntity] = set()
    for entry in entries:
        try:
            entity = _validated_entity(entry)
            if entity in seen:
                raise _refuse(f"Ignoring duplicate entity {_shown(entity)}")
            seen.add(entity)
            records += _alter_entity(image, entity, entry)
        except KafkaError as error:
            results.append(error)
        else:
            results.append(None)
    return results, records


def _shown(entity: QuotaEntity) -> str:
    return "ClientQuotaEntity(entries={" + ", ".join(f"{kind}={name}" for kind, name in entity) + "})"


def _validated_entity(entry: RequestEntryData) -> QuotaEntity:
    parts: dict[str, str | None] = {}
    for part in entry.entity:
        if part.entity_type in parts:
            raise _refuse(f"Invalid client quota entity, duplicate entity entry {part.entity_type}")
        if part.entity_type not in (USER, CLIENT_ID, IP):
            raise _refuse(f"Unhandled client quota entity type: {part.entity_type}")
        if part.entity_name == "":
            raise _refuse(f"Empty {part.entity_type} not supported")
        parts[part.entity_type] = part.entity_name
    if not parts:
        raise _refuse("Invalid empty client quota entity")
    if IP in parts:
        if len(parts) > 1:
            raise _refuse("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
        _check_address(parts[IP])
    return quota_entity(parts)


def _check_address(address: str | None) -> None:
    # Kafka also accepts host names; resolving one here would block the loop.
    if address is None or address == "localhost":
        return
    try:
        ipaddress.ip_address(address)
    except ValueError as error:
        raise _refuse(f"{address} is not a valid IP or resolvable host.") from error


def _alter_entity(image: ClusterImage, entity: QuotaEntity, entry: RequestEntryData) -> list[Message]:
    keys = _IP_KEYS if entity[0][0] == IP else _USER_AND_CLIENT_KEYS
    current = image.client_quotas.get(entity, {})
    records: list[Message] = []
    seen: set[str] = set()
    for op in entry.ops:
        if op.key in seen:
            raise _refuse(f"Duplicate quota key {op.key} not updating quota for this entity {_shown(entity)}")
        seen.add(op.key)
        if op.remove:
            if op.key in current:
                records.append(ClientQuotaRecord(entity=_entity_data(entity), key=op.key, remove=True))
            continue
        _check_value(keys, op.key, op.value)
        if current.get(op.key) != op.value:
            records.append(ClientQuotaRecord(entity=_entity_data(entity), key=op.key, value=op.value))
    return records


def _entity_data(entity: QuotaEntity) -> list[EntityData]:
    return [EntityData(entity_type=kind, entity_name=name) for kind, name in entity]


def _check_value(keys: Mapping[str, str], key: str, value: float) -> None:
    kind = keys.get(key)
    if kind is None:
        raise _refuse(f"Invalid configuration key {key}")
    if not value > 0:
        raise _refuse(f"Quota {key} must be greater than 0")
    if kind == "DOUBLE":
        return
    name, largest = _LARGEST[kind]
    if value > largest:
        raise _refuse(f"Proposed value for {key} is too large for {name}.")
    if value % 1 > 1e-6:
        raise _refuse(f"{key} cannot be a fractional value.")


def matching_quotas(
    image: ClusterImage, components: Sequence[ComponentData], *, strict: bool
) -> list[tuple[QuotaEntity, Mapping[str, float]]]:
    """Return the quotas of the entities that a filter matches: by name, default or any of a type."""
    by_type: dict[str, ComponentData] = {}
    for component in components:
        if component.entity_type in by_type:
            raise _refuse(f"Entity type {component.entity_type} cannot appear more than once in the filter.")
        if component.entity_type == "":
            raise _refuse("Unexpected empty filter component entity type")
        if component.entity_type not in (USER, CLIENT_ID, IP):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {component.entity_type}")
        if component.match_type == _MATCH_EXACT and component.match is None:
            raise _refuse("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if component.match_type != _MATCH_EXACT and component.match is not None:
            raise _refuse("Request specified a match type without a name, but set the match string.")
        if component.match_type not in (_MATCH_EXACT, _MATCH_DEFAULT, _MATCH_ANY):
            raise _refuse(f"Unknown match type {component.match_type}")
        by_type[component.entity_type] = component
    if IP in by_type and len(by_type) > 1:
        raise _refuse("Invalid entity filter component combination, IP filter component should not be combined")
    matching: list[tuple[QuotaEntity, Mapping[str, float]]] = []
    for entity, quotas in image.client_quotas.items():
        parts = dict(entity)
        if strict and set(parts) != set(by_type):
            continue
        if all(kind in parts and _matches(component, parts[kind]) for kind, component in by_type.items()):
            matching.append((entity, quotas))
    return matching


def _matches(component: ComponentData, name: str | None) -> bool:
    if component.match_type == _MATCH_ANY:
        return True
    return name is None if component.match_type == _MATCH_DEFAULT else name == component.match
