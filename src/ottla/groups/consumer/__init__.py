"""Consumer groups (KIP-848): ConsumerGroupHeartbeat, server-side assignment and reconciliation."""
