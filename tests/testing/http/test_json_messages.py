"""Messages as JSON and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.api import APIS, response_class
from ottla.protocol.inspect.secrets import HIDDEN
from ottla.protocol.messages.k44_incremental_alter_configs import AlterableConfig
from ottla.testing.http.json_messages import read_message, to_json
from tests.protocol.strategies import of_struct

KEYS = [api.key for api in APIS]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_response_round_trip(data: st.DataObject) -> None:
    cls = response_class(data.draw(st.sampled_from(KEYS)))
    message = data.draw(of_struct(cls, cls.__schema__.versions[-1]))
    there = json.loads(json.dumps(to_json(message)))
    if HIDDEN not in json.dumps(there):
        assert to_json(read_message(cls, there)) == there


def test_invalid_messages_are_refused() -> None:
    cls = response_class(19)
    for value, problem in ((3, "must be an object"), ({"topics": [3]}, "must be an object"), ({"x": 1}, "no field x")):
        with pytest.raises(ValueError, match=problem):
            read_message(cls, value)


def test_secrets_are_hidden() -> None:
    for name, shown in (("retention.ms", "secret"), ("ssl.key.password", HIDDEN), ("sasl.jaas.config", HIDDEN)):
        assert to_json(AlterableConfig(name=name, value="secret"))["value"] == shown
