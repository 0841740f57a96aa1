"""Partitions in the metadata: state, placement, leader election, ISR changes (Kafka's ReplicationControlManager)."""
