"""Format "ottla": batch and streaming reads from any Kafka over the network."""
