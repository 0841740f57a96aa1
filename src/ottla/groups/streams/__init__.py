"""Streams groups (KIP-1071): topologies, task assignment and reconciliation."""
