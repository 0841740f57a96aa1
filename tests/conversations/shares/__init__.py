"""Conversations about share groups."""
