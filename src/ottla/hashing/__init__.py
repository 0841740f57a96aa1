"""Hashes that must equal Apache Kafka's bit for bit.

Kafka selects a coordinator by `String.hashCode`, lets the order of its hash maps reach assignments and responses, and
stores an XXH3 hash of topic metadata in group records. Python's `hash` differs from all of them, and between processes.
"""
