"""For tests of Kafka applications: what they start, steer and check a cluster with."""
