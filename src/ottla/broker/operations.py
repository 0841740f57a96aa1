"""Which operations there are on each kind of resource, as the bit fields that answers carry (KIP-430)."""

from __future__ import annotations

from typing import Final

from ottla.cluster.acls import AclOperation

NOT_ASKED: Final = -(2**31)


def bit_field(*operations: AclOperation) -> int:
    """Operations as one number: bit n stands for operation n."""
    return sum(1 << each for each in operations)


TOPIC_OPERATIONS: Final = bit_field(
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS: Final = bit_field(
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
    AclOperation.IDEMPOTENT_WRITE,
)
GROUP_OPERATIONS: Final = bit_field(
    AclOperation.READ,
    AclOperation.DELETE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
