"""The tables of config keys: of brokers, topics, groups and client metrics."""
