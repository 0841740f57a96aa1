"""Share partitions: acquisition of records, share sessions, and the share coordinator with `__share_group_state`.

Members and assignments of share groups are in `groups.share`.
"""
