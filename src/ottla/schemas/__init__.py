"""Schemas: Avro, JSON Schema and Protobuf with Confluent's canonical forms and compatibility rules.

Functions over text without I/O, except `registry_client`, which calls a registry. `ottla.registry` serves schemas.
"""
