"""A schema registry with the REST API of Confluent Schema Registry, whose state is the topic `_schemas`.

`state` replays the topic's records, `service` decides, `api` speaks HTTP, `schemas_topic` reads and writes the topic,
and `server` runs all of it on a thread.
"""
