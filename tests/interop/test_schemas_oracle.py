"""Avro schemas against Avro's Java library: equal canonical forms and incompatibilities."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest

from ottla.schemas.avro import AvroSchema
from ottla.schemas.schema import InvalidSchemaError
from tests.schemas.avro_cases import changed, random_schema

pyspark = pytest.importorskip("pyspark")
pytestmark = pytest.mark.interop
CASES = 3000
ORACLE = Path(__file__).parent / "java" / "avro" / "AvroOracle.java"


def test_random_schemas_equal_avros_java_library() -> None:
    java = shutil.which("java")
    assert java is not None, "Avro's Java library needs Java"
    pairs = []
    for seed in range(CASES):
        random = Random(seed)
        writer = random_schema(random)
        pairs.append((json.dumps(changed(random, writer)), json.dumps(writer)))
    stdin = "".join(f"{reader}\n{writer}\n" for reader, writer in pairs)
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    done = subprocess.run(
        [java, "-cp", str(jars), str(ORACLE)], input=stdin, capture_output=True, text=True, check=True, timeout=900
    )
    refused = 0
    for (reader, writer), line in zip(pairs, done.stdout.splitlines(), strict=True):
        expected = line.split("\t")
        try:
            first, second = AvroSchema.parse(reader), AvroSchema.parse(writer)
        except InvalidSchemaError:
            result = ["refused"]
            refused += 1
        else:
            problems = [
                f"{incompatibility.type} {incompatibility.location} {incompatibility.detail}"
                for incompatibility in first.incompatibilities(second)
            ]
            result = [first.canonical(), second.canonical(), *problems]
        assert result == expected, (reader, writer)
    assert 0 < refused < CASES / 2
