"""Writes to topics with format "ottla": rows to records, and the exactly-once writer."""
