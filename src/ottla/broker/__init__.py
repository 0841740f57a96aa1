"""One node's live state: the replicas it leads, what waits on them, and the parts of the cluster that it shares.

Handlers act on it; it knows nothing of sockets or frames.
"""
