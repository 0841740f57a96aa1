"""Conversations about transactions."""
