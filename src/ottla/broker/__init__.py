"""Live state of the nodes of one process: partitions, delayed fetches, fetch sessions, coordinators, background tasks.

Handlers act on it. It does not know sockets or frames.
"""
