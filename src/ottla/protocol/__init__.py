"""Kafka's bytes: message schemas and codecs, record values, errors, framing. No I/O, no broker state."""
