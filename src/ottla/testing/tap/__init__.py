"""A Kafka-aware proxy that records, and optionally alters, the traffic between clients and any Kafka cluster."""
