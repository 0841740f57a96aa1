"""Results of a verification: findings and totals."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.protocol.uuids import Uuid
    from ottla.storage.names import TopicPartition


class FileKind(StrEnum):
    """Kind of file that a finding is about, which decides how to repair it."""

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
    """A finding in a file, with byte position and offset; a note if not `wrong`."""

    path: str
    kind: FileKind
    reason: str
    position: int | None = None
    offset: int | None = None
    wrong: bool = True


@dataclass(slots=True)
class VerifyReport:
    """Totals and findings of a verification."""

    findings: list[Finding] = field(default_factory=list)
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    bytes: int = 0
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    topic_ids: dict[str, Uuid] = field(default_factory=dict)

    @property
    def wrong(self) -> list[Finding]:
        """Return the findings that are errors."""
        return [finding for finding in self.findings if finding.wrong]
