"""Conversations about streams groups."""
