"""The table of configs against the definitions in Apache Kafka's jars."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ottla.cluster.configs import BROKER, CLIENT_METRICS, GROUP, REQUIRED, TOPIC, to_text

if TYPE_CHECKING:
    from .jvm import Jvm

pytestmark = pytest.mark.interop

TABLES = {"topic": TOPIC, "group": GROUP, "client_metrics": CLIENT_METRICS, "broker": BROKER}


def test_every_kafka_config_is_declared_with_its_definition(kafka_jvm: Jvm) -> None:
    lines = kafka_jvm.run("ConfigTable").stdout.splitlines()
    kafkas = sorted((row for line in lines if (row := json.loads(line))), key=lambda row: (row[0], row[1]))
    ours = sorted(
        (
            [
                kind,
                key.name,
                key.type.name,
                "<required>" if key.default is REQUIRED else to_text(key.default_value()),
                key.validator.describe() if key.validator is not None else "",
                key.mode.value,
                key.synonym,
                key.internal,
            ]
            for kind, keys in TABLES.items()
            for key in keys.values()
        ),
        key=lambda row: (row[0], row[1]),
    )
    assert [row[:2] for row in ours] == [row[:2] for row in kafkas]
    assert ours == kafkas
