"""Mixed groups: online upgrade of classic groups to consumer groups, and downgrade."""
