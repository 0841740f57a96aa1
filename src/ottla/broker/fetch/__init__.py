"""Fetches of clients: delayed fetches and fetch sessions."""
