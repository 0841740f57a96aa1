"""Metadata as clients of one listener see it, and the cache of its encoded topics."""
