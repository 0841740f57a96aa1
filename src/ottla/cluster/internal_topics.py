"""Names of Kafka's internal topics, and the partition of a coordinator's topic that a key belongs to."""

from __future__ import annotations

from typing import Final

from ottla.hashing.java import java_string_hash
from ottla.protocol.schema import Uuid

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
SHARE_GROUP_STATE_TOPIC: Final = "__share_group_state"
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
CLUSTER_METADATA_TOPIC_ID: Final = Uuid((1).to_bytes(16, "big"))
INTERNAL_TOPICS: Final = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC})


def partition_for(key: str, partition_count: int) -> int:
    """Return the partition of a group id, transactional id or share key, as Kafka's `partitionFor` computes it.

    The hash -2^31 has no absolute value and maps to partition 0.
    """
    value = java_string_hash(key)
    return 0 if value == -0x8000_0000 else abs(value) % partition_count
