"""The group coordinator: classic, consumer, share and streams groups, and committed offsets.

State machines and their records in `__consumer_offsets`, without sockets, files or threads. Requests enter through
`coordinator.GroupCoordinator`; `environment` declares what the broker provides. Each type of group has a package;
`migration` converts between types.
"""
