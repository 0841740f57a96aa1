"""Changes of nodes and replicas: start and stop of a node, log owners, moves between directories, voters."""
