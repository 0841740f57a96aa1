"""A small protocol client for any Kafka: connect, route, retry; whole batches in and out.

The command line, the tap and Spark use it. It has no consumer-group logic; applications have better clients.
"""

from ottla.client.auth import Security
from ottla.client.client import Client, PartitionInfo, TopicInfo
from ottla.client.connection import BrokerConnection, ConnectionFailedError

__all__ = [
    "BrokerConnection",
    "Client",
    "ConnectionFailedError",
    "PartitionInfo",
    "Security",
    "TopicInfo",
]
