"""The cluster's metadata: topics, partition leaders, configs, security. Not the logs themselves, and no sockets."""
