"""Typed columns: values and keys of records decoded with the schemas of a registry, and encoded for a sink."""
