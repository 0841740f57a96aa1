"""The example pairs of Confluent's repository, where a copy is at hand: verdicts and differences must be equal.

`OTTLA_CONFLUENT_REPOSITORY=DIR pytest tests/schemas/test_confluent_pairs.py`; DIR is a checkout of
confluentinc/schema-registry. The files have Confluent's licence and are no part of this project; the pairs of
`test_json_difference.py` and `test_protobuf.py` cover the same rules.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from ottla.schemas.json_changes import STRICT
from ottla.schemas.json_difference import compare as compare_json
from ottla.schemas.json_schema import JsonSchema
from ottla.schemas.proto_difference import COMPATIBLE
from ottla.schemas.proto_difference import compare as compare_protobuf
from ottla.schemas.protobuf import ProtobufSchema

REPOSITORY = os.environ.get("OTTLA_CONFLUENT_REPOSITORY")
JSON_FILES = (
    "diff-schema-examples.json",
    "diff-combined-schema-examples.json",
    "diff-schema-examples-2020-12.json",
    "diff-combined-schema-examples-2020-12.json",
)
PROTOBUF_FILES = ("diff-schema-examples.json",)


def cases(provider: str, names: tuple[str, ...]) -> list[Any]:
    if REPOSITORY is None:
        return []
    found = []
    for name in names:
        text = (Path(REPOSITORY) / provider / "src/test/resources" / name).read_text()
        # Confluent's parser accepts a comma before a closing bracket.
        for number, case in enumerate(json.loads(re.sub(r",(\s*[\]}])", r"\1", text))):
            found.append(pytest.param(case, "2020-12" in name, id=f"{name}-{number}"))
    return found


pytestmark = pytest.mark.skipif(REPOSITORY is None, reason="OTTLA_CONFLUENT_REPOSITORY is not set")


@pytest.mark.parametrize(("case", "newest"), cases("json-schema-provider", JSON_FILES))
def test_json_schema_pair(case: dict[str, Any], newest: bool) -> None:
    draft = "https://json-schema.org/draft/2020-12/schema" if newest else None
    original, update = (_with_draft(case[name], draft) for name in ("original_schema", "update_schema"))
    old, new = JsonSchema.parse(json.dumps(original)), JsonSchema.parse(json.dumps(update))
    differences = compare_json(old.loader, new.loader, STRICT)
    shown = sorted(map(str, differences))
    assert (shown, not new.differences(old)) == (sorted(case["changes"]), case["compatible"])


def _with_draft(schema: Any, draft: str | None) -> Any:
    return {"$schema": draft, **schema} if draft and isinstance(schema, dict) and "$schema" not in schema else schema


@pytest.mark.parametrize(("case", "newest"), cases("protobuf-provider", PROTOBUF_FILES))
def test_protobuf_pair(case: dict[str, Any], newest: bool) -> None:
    old, new = (
        ProtobufSchema.parse(
            case[f"{side}_schema"],
            {entry["name"]: entry["dependency"] for entry in case.get(f"{side}_dependencies") or ()},
        )
        for side in ("original", "update")
    )
    differences = compare_protobuf(old.file, old.dependencies, new.file, new.dependencies)
    shown = sorted(map(str, differences))
    verdict = all(difference.type in COMPATIBLE for difference in differences)
    assert (shown, verdict) == (sorted(case["changes"]), case["compatible"])
