"""The table of configs, row by row against the definitions inside Apache Kafka."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ottla.cluster.configs import BROKER, CLIENT_METRICS, GROUP, REQUIRED, TOPIC, to_text

if TYPE_CHECKING:
    from .jvm import Jvm

pytestmark = pytest.mark.interop

TABLES = {"topic": TOPIC, "group": GROUP, "client_metrics": CLIENT_METRICS, "broker": BROKER}


def test_every_config_of_kafka_is_there_with_its_facts(kafka_jvm: Jvm) -> None:
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
