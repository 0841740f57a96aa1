"""What tests write for the explorer: schedules, faults, options; wrong values name the valid ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ottla.protocol.api import APIS
from ottla.protocol.error_codes import ErrorCode
from ottla.testing.explore.faults import FaultSelection, Traits, parse_fault
from ottla.testing.explore.options import explore_options, parse_seconds
from ottla.testing.explore.outcome import RunVerdict, judge
from ottla.testing.explore.points import Point, parse_point
from ottla.testing.explore.possible_errors import _TABLE, possible_errors
from ottla.testing.explore.regressions import RegressionFileError, add_regressions, read_regressions
from ottla.testing.explore.schedule import CLEAN, parse_schedule

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "text",
    [
        "disconnect at Produce#1",
        "response-lost at Produce[orders-0]#12",
        "error:NOT_LEADER_OR_FOLLOWER at Fetch#3 + member-evicted at OffsetCommit#1",
    ],
)
def test_schedule_survives_its_text_form(text: str) -> None:
    assert str(parse_schedule(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a fault at a point"),
        ("disconnect", "is not a fault at a point"),
        ("explode at Produce#1", "the faults are disconnect, response-lost"),
        ("disconnect at Produce", "is not a point"),
        ("disconnect at Produce#0", "is not a point"),
        ("disconnect at Porduce#1", "Kafka has no API 'Porduce'; the APIs are"),
        ("error:NO_SUCH at Produce#1", "Kafka has no error 'NO_SUCH'"),
    ],
)
def test_malformed_schedule_names_the_valid_form(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", "\\(")):
        parse_schedule(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"faults": ["explode"]}, "there is no fault 'explode'; the faults are"),
        ({"apis": ["Porduce"]}, "Kafka has no API 'Porduce'"),
        ({"checks": ["everything"]}, "there is no check 'everything'; the checks are"),
        ({"budget": "soon"}, "'soon' is not a duration"),
        ({"budget": -1}, "-1 is not a duration"),
        ({"seed": "x"}, "a seed is a whole number"),
        ({"combinations": -1}, "combinations must be 0 or more"),
        ({"max_findings": 0}, "max_findings must be 1 or more"),
    ],
)
def test_wrong_option_names_the_valid_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        explore_options(**options)


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60), ("500ms", 0.5), ("2min", 120), ("1h", 3600), (3, 3), ("4", 4)]
)
def test_durations(text: str | int, seconds: float) -> None:
    assert parse_seconds(text) == seconds


def test_point_has_the_role_of_its_connection() -> None:
    roles = [parse_point(f"{api}#1").role for api in ("Produce", "Fetch", "Heartbeat", "Metadata", "CreateTopics")]
    assert roles == ["producer", "consumer", "coordinator", "client", "admin"]


def test_error_tables_name_known_apis_and_errors() -> None:
    names = {api.name for api in APIS}
    assert set(_TABLE) <= names
    for api in _TABLE:
        assert possible_errors(api)


def test_faults_that_destroy_records_are_explored_only_by_name() -> None:
    def names(selection: FaultSelection) -> set[str]:
        return {str(fault) for fault in selection.faults_at(Point("Fetch", 1), Traits())}

    assert not {"topic-recreated", "error:OFFSET_OUT_OF_RANGE"} & names(FaultSelection())
    assert names(FaultSelection(["topic-recreated"])) == {"topic-recreated"}
    assert names(FaultSelection(["error:OFFSET_OUT_OF_RANGE"])) == {"error:OFFSET_OUT_OF_RANGE"}


def test_groups_of_errors_choose_by_severity() -> None:
    retriable = FaultSelection(["retriable-error"]).faults_at(Point("Produce", 1), Traits())
    fatal = FaultSelection(["fatal-error"]).faults_at(Point("Produce", 1), Traits())
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER in {fault.code for fault in retriable}
    assert ErrorCode.MESSAGE_TOO_LARGE in {fault.code for fault in fatal}
    assert not {fault.code for fault in retriable} & {fault.code for fault in fatal}


def test_faults_need_what_the_test_uses() -> None:
    def kinds(api: str, traits: Traits) -> set[str]:
        return {str(fault) for fault in FaultSelection().faults_at(Point(api, 1), traits)}

    assert "leader-moved" not in kinds("Produce", Traits(nodes=1))
    assert "leader-moved" in kinds("Produce", Traits(nodes=3))
    assert "member-evicted" not in kinds("Fetch", Traits())
    assert "member-evicted" in kinds("Fetch", Traits(groups=True))
    assert "producer-fenced" in kinds("EndTxn", Traits(transactions=True))


def test_client_error_after_a_fatal_fault_is_a_report_and_an_assertion_is_a_failure() -> None:
    from confluent_kafka import KafkaError, KafkaException

    fatal = parse_schedule("error:MESSAGE_TOO_LARGE at Produce#1")
    retriable = parse_schedule("disconnect at Produce#1")
    error = KafkaException(KafkaError(10))
    assert judge(error, fatal) is RunVerdict.REPORTED
    assert judge(error, retriable) is RunVerdict.FAILED
    assert judge(AssertionError("lost"), fatal) is RunVerdict.FAILED
    assert judge(RuntimeError("the broker said MESSAGE_TOO_LARGE"), fatal) is RunVerdict.REPORTED
    assert judge(None, CLEAN) is RunVerdict.PASSED


def test_parse_fault_takes_kinds_and_codes() -> None:
    assert str(parse_fault("throttled")) == "throttled"
    assert parse_fault("error:NOT_COORDINATOR").code is ErrorCode.NOT_COORDINATOR


def test_regressions_are_kept_once(tmp_path: Path) -> None:
    path = tmp_path / "kafka_regressions.json"
    schedule = parse_schedule("disconnect at Produce#1")
    for _ in range(2):
        add_regressions(path, "test_app.py::test_order", [schedule])
    assert read_regressions(path) == {"test_app.py::test_order": [schedule]}
    assert json.loads(path.read_text()) == {"test_app.py::test_order": ["disconnect at Produce#1"]}


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', '{"a": ["explode at Produce#1"]}'])
def test_malformed_regressions_name_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kafka_regressions.json"
    path.write_text(text)
    with pytest.raises(RegressionFileError, match=r"kafka_regressions\.json: "):
        read_regressions(path)
