"""Classic groups: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, with assignment by the group leader."""
