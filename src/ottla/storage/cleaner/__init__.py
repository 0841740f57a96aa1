"""Compaction (Kafka's LogCleaner): which log is cleaned next, and the copy of its closed segments."""
