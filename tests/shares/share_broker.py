"""A broker in virtual time with a topic that a share group consumes, and requests of its members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.session import Session
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.k78_share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
)
from ottla.protocol.messages.k79_share_acknowledge import (
    AcknowledgementBatch as Acknowledged,
)
from ottla.protocol.messages.k79_share_acknowledge import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from ottla.records.builder import build_batch
from ottla.records.control import ControlType
from ottla.records.iterate import Record, iter_all_records
from ottla.shares.environment import SharePartitionKey
from tests.conversations.local_talk import LocalTalk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ottla.broker.broker import Broker
    from ottla.protocol.schema import Uuid

GROUP, ANN, BOB = "g", "ann", "bob"
GROUP_RESOURCE = 32


class ShareBroker(LocalTalk):
    """A broker with a topic `t` of two partitions, which a share group consumes from their beginnings."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(settings or {})
        self.create("t", 2)
        topic = self.runtime.image.topic("t")
        assert topic is not None
        self.topic_id = topic.id
        self.share(0)
        self.share(1)

    @property
    def node(self) -> Broker:
        return self.runtime.nodes[1]

    def connect_as(self, number: int) -> None:
        """Send further requests on another connection."""
        self._session = Session(number, "PLAINTEXT", "127.0.0.1", 40_000 + number)

    def share(self, partition: int, start: int = 0, epoch: int = 0) -> None:
        """Initialize the state of a share partition with a start offset."""
        begun = self.node.share_states.initialize(SharePartitionKey(GROUP, self.topic_id, partition), epoch, start)
        self.wait_until(lambda: begun.done, "not initialized")
        assert begun.response is ErrorCode.NONE

    def configure(self, **configs: str) -> None:
        """Set configs of the group."""
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=GROUP_RESOURCE,
                    resource_name=GROUP,
                    configs=[
                        AlterableConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()
                    ],
                )
            ]
        )
        reply = self.quietly(request, IncrementalAlterConfigsResponse)
        assert [response.error_code for response in reply.responses] == [0]

    def write(self, *values: bytes, partition: int = 0, producer: int = -1, sequence: int = -1) -> int:
        """Append one batch, transactional if a producer is given, and return its size."""
        batch = build_batch(
            [Record(index, self.world.clock.now_ms(), None, value) for index, value in enumerate(values)],
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
            transactional=producer >= 0,
        )
        self.runtime.partitions["t", partition].append(batch)
        return len(batch)

    def end(self, producer: int, *, commit: bool) -> None:
        """End a transaction in partition 0."""
        partition = self.runtime.partitions["t", 0]
        partition.log.append_marker(
            ControlType.COMMIT if commit else ControlType.ABORT,
            partition.state.leader_epoch,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
        )

    def fetching(
        self,
        member: str | None,
        epoch: int,
        partitions: tuple[int, ...] = (),
        *,
        acks: Mapping[int, list[tuple[int, int, list[int]]]] | None = None,
        forgotten: tuple[int, ...] = (),
        wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1_000_000,
        max_records: int = 500,
        batch_size: int = 500,
        mode: int = 0,
        renew: bool = False,
        group: str | None = GROUP,
        topic_id: Uuid | None = None,
        version: int = 2,
    ) -> Callable[[], ShareFetchResponse]:
        """Send a ShareFetch; the returned function waits for the response."""
        acks = acks or {}
        named = [*partitions, *(ack for ack in acks if ack not in partitions)]
        request = ShareFetchRequest(
            group_id=group,
            member_id=member,
            share_session_epoch=epoch,
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_records=max_records,
            batch_size=batch_size,
            share_acquire_mode=mode,
            is_renew_ack=renew,
            topics=[
                FetchTopic(
                    topic_id=topic_id or self.topic_id,
                    partitions=[
                        FetchPartition(
                            partition_index=partition,
                            acknowledgement_batches=[
                                AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
                                for first, last, types in acks.get(partition, [])
                            ],
                        )
                        for partition in named
                    ],
                )
            ]
            if named
            else [],
            forgotten_topics_data=[ForgottenTopic(topic_id=self.topic_id, partitions=list(forgotten))]
            if forgotten
            else [],
        )
        return self.start(request, ShareFetchResponse, version)

    def fetch(self, member: str | None, epoch: int, partitions: tuple[int, ...] = (), **options: object) -> ShareFetchResponse:  # fmt: skip  # noqa: E501
        """Send a ShareFetch and return the response."""
        return self.fetching(member, epoch, partitions, **options)()  # type: ignore[arg-type]

    def acknowledging(
        self,
        member: str | None,
        epoch: int,
        acks: Mapping[int, list[tuple[int, int, list[int]]]],
        *,
        renew: bool = False,
        group: str | None = GROUP,
        topic_id: Uuid | None = None,
        version: int = 2,
    ) -> Callable[[], ShareAcknowledgeResponse]:
        """Send a ShareAcknowledge; the returned function waits for the response."""
        request = ShareAcknowledgeRequest(
            group_id=group,
            member_id=member,
            share_session_epoch=epoch,
            is_renew_ack=renew,
            topics=[
                AcknowledgeTopic(
                    topic_id=topic_id or self.topic_id,
                    partitions=[
                        AcknowledgePartition(
                            partition_index=index,
                            acknowledgement_batches=[
                                Acknowledged(first_offset=first, last_offset=last, acknowledge_types=types)
                                for first, last, types in batches
                            ],
                        )
                        for index, batches in acks.items()
                    ],
                )
            ],
        )
        return self.start(request, ShareAcknowledgeResponse, version)

    def acknowledge(self, member: str | None, epoch: int, acks: Mapping[int, list[tuple[int, int, list[int]]]], **options: object) -> list[ErrorCode]:  # fmt: skip  # noqa: E501
        """Send a ShareAcknowledge; return the top-level error, or the error of each partition."""
        response = self.acknowledging(member, epoch, acks, **options)()  # type: ignore[arg-type]
        if response.error_code:
            return [ErrorCode(response.error_code)]
        return [ErrorCode(partition.error_code) for topic in response.responses for partition in topic.partitions]


def acquired(response: ShareFetchResponse) -> dict[int, list[tuple[int, int, int]]]:
    """Return the acquired ranges by partition: first and last offset, and delivery count."""
    assert response.error_code == 0
    return {
        data.partition_index: [(r.first_offset, r.last_offset, r.delivery_count) for r in data.acquired_records]
        for data in parts(response)
        if data.acquired_records
    }


def parts(response: ShareFetchResponse) -> list[PartitionData]:
    return [data for topic in response.responses for data in topic.partitions]


def values(data: PartitionData) -> list[bytes | None]:
    return [record.value for _, record in iter_all_records(bytes(data.records or b""))]
