"""Consumer groups: who reads what, and how far they have read.

State machines and their records in `__consumer_offsets`; no sockets, no files, no waiting. Requests come in through
`coordinator.GroupCoordinator`; what the room needs from outside it declares in `environment`.
"""
