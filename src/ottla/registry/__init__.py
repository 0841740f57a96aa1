"""A schema registry with the REST API of Confluent Schema Registry, backed by the topic `_schemas`.

`state` replays the topic's records, `service` decides, `api` handles HTTP, `schemas_topic` reads and writes the topic,
and `server` runs all of it on a thread.
"""
