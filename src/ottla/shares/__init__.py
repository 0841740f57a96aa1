"""Share groups' work on partitions: which records are in whose hands, and the state of that in `__share_group_state`.

Who is a member of a share group and is assigned what is the business of `groups`.
"""
