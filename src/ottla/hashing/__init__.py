"""Hashes and hash orders that must equal Java's and Kafka's bit for bit.

Kafka places groups and transactional ids by `String.hashCode`, iterates over hash maps where the order is visible to
clients (assignments, responses), and hashes topic metadata with XXH3. Python's own hashes differ, so they are
implemented here.
"""
