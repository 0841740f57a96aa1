"""A protocol client for any Kafka: routing, retries, whole record batches. It never joins a group.

The command line, the tap and Spark use it; it never imports the broker.
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
