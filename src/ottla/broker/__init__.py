"""Live state of the nodes of one process: partitions, delayed fetches, fetch sessions, coordinators, background tasks.

Handlers read and change it. Sockets and frames are in `ottla.server`.
"""
