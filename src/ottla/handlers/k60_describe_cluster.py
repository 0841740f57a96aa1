"""DescribeCluster (60): brokers, controller and cluster id. v1 adds controllers, v2 fenced brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k60_describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call

BROKERS, CONTROLLERS = 1, 2


def on_error(
    request: DescribeClusterRequest, version: int, code: ErrorCode, message: str | None
) -> DescribeClusterResponse:
    """Return the error."""
    return DescribeClusterResponse(error_code=code, error_message=message)


@api(60, versions=(0, 2), acl=access.EVERYBODY, on_error=on_error)
def describe_cluster(call: Call, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Describe the cluster as clients of this listener can reach it."""
    if request.endpoint_type == CONTROLLERS:
        raise KafkaError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )
    if request.endpoint_type != BROKERS:
        raise KafkaError(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {request.endpoint_type}")
    runtime = call.broker.runtime
    response = DescribeClusterResponse(
        cluster_id=runtime.cluster_id,
        controller_id=runtime.controller.node_id,
        brokers=[
            DescribeClusterBroker(broker_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in runtime.reachable_brokers(call.session.listener)
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = call.cluster_operations()
    return response
