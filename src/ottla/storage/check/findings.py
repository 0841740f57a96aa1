"""What a verification tells: findings in files, and the sum of what was looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.protocol.uuids import Uuid
    from ottla.storage.names import TopicPartition


class FileKind(StrEnum):
    """Which file a finding is about; each kind is mended in its own way."""

    LOG = "log"
    GAP = "gap"
    INDEX = "index"
    TIME_INDEX = "timeindex"
    TXN_INDEX = "txnindex"
    SNAPSHOT = "snapshot"
    EPOCHS = "leader-epochs"
    TOPIC_ID = "partition.metadata"
    CHECKPOINT = "checkpoint"
    METADATA = "metadata"
    NAME = "name"


@dataclass(slots=True, frozen=True)
class Finding:
    """Something in a file: what it is, and where in the file and in the log; not all that is found is `wrong`."""

    path: str
    kind: FileKind
    reason: str
    position: int | None = None
    offset: int | None = None
    wrong: bool = True


@dataclass(slots=True)
class VerifyReport:
    """What was looked at and what was found."""

    findings: list[Finding] = field(default_factory=list)
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    bytes: int = 0
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    topic_ids: dict[str, Uuid] = field(default_factory=dict)

    @property
    def wrong(self) -> list[Finding]:
        """The findings that are errors."""
        return [finding for finding in self.findings if finding.wrong]
