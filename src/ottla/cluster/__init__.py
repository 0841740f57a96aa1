"""The cluster's metadata: what exists, who leads, which configs hold. Not the logs themselves, and no sockets."""
