"""Share groups on a node: fetching, the partitions that it leads, and the way to the share coordinator."""
