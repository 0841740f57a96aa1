"""Share groups (KIP-932): membership and start offsets. Acquisition locks and deliveries are in `ottla.shares`."""
