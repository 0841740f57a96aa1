"""Codecs of messages: their generated source, compiled on first use, and the byte forms in it."""
