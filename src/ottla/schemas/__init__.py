"""Schemas: Avro, JSON Schema and Protobuf with Confluent's canonical forms and compatibility rules.

Pure functions over text: no network, no registry state. `ottla.registry` serves them over HTTP.
"""
