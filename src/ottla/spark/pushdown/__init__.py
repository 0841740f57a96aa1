"""Filters and column pruning that Spark pushes into reads of both sources."""
