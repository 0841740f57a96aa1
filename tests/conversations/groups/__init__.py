"""Conversations about classic and consumer groups and their offsets."""
