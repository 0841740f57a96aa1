"""Kafka's bytes: message schemas and codecs, record values, errors, framing. No I/O, no broker state."""

from __future__ import annotations

from ottla.protocol.api import ApiKey, find_api, request_class, response_class
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.schema import ZERO_UUID, Message, Struct, Uuid

__all__ = [
    "ZERO_UUID",
    "ApiKey",
    "ErrorCode",
    "KafkaError",
    "Message",
    "ProtocolError",
    "Struct",
    "Uuid",
    "find_api",
    "request_class",
    "response_class",
]
