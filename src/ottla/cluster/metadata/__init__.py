"""The metadata log of a quorum of one: records, snapshots, formatting, damage and repair, as in Kafka's raft module."""
