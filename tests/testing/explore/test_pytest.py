"""The explorer in pytest: options, marker, replay, regressions and reports."""

from __future__ import annotations

import json

import pytest

pytest_plugins = ["pytester"]

TEST = """
import pytest
from confluent_kafka import KafkaException, Producer

QUICK = {"linger.ms": 0, "log_level": 0, "retry.backoff.ms": 20, "reconnect.backoff.ms": 20}
setups = []

@pytest.fixture
def order():
    setups.append("setup")
    yield b"book"

def send(bootstrap, order, idempotent):
    errors = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": idempotent, **QUICK})
    producer.produce("orders", order, on_delivery=lambda error, _: errors.append(error) if error else None)
    producer.flush(60)
    if errors:
        raise KafkaException(errors[0])

%s
@pytest.mark.kafka(topics=["orders"])
def test_order(kafka, order):
    send(kafka.bootstrap, order, False)
    assert order in [record.value for record in kafka.records("orders")]
"""


@pytest.fixture(autouse=True)
def _configure(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")


def test_marker_explores_a_test_and_reports_the_failure(pytester: pytest.Pytester) -> None:
    marker = "@pytest.mark.kafka_explore(faults=['response-lost', 'disconnect'], apis=['Produce'])"
    pytester.makepyfile(test_app=TEST % marker)
    result = pytester.runpytest_subprocess("--kafka-save", "--kafka-report=report.html")
    result.assert_outcomes(failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "*the broker handles Produce[[]orders-0[]]#1 and the connection breaks before the response*",
            "4 of 4 runs failed: deterministic",
            "the test passed, but duplicate: *",
            ">>> *",
            "*pytest test_app.py::test_order --kafka-replay='response-lost at Produce[[]orders-0[]]#1'",
            "test_app.py::test_order: 1 failure; 8 runs in *",
            "report: *report.html",
        ]
    )
    page = (pytester.path / "report.html").read_text()
    assert "response-lost at Produce[orders-0]#1" in page
    assert "<script" not in page
    stored = json.loads((pytester.path / "kafka_regressions.json").read_text())
    assert stored == {"test_app.py::test_order": ["response-lost at Produce[orders-0]#1"]}

    pytester.makepyfile(test_app=TEST % "")
    again = pytester.runpytest_subprocess("-v")
    again.assert_outcomes(passed=1, failed=1)
    again.stdout.fnmatch_lines(["*test_order[[]no faults[]] PASSED*", "*test_order[[]response-lost at *FAILED*"])


def test_replay_runs_one_schedule(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_app=TEST % "")
    failing = pytester.runpytest_subprocess("--kafka-replay=response-lost at Produce#1")
    failing.assert_outcomes(failed=1)
    passing = pytester.runpytest_subprocess("--kafka-replay=disconnect at Metadata#1")
    passing.assert_outcomes(passed=1)
    missed = pytester.runpytest_subprocess("--kafka-replay=disconnect at Fetch#1")
    missed.assert_outcomes(failed=1)
    missed.stdout.fnmatch_lines(["*a fault of the schedule did not happen*"])


def test_wrong_options_are_usage_errors(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_app=TEST % "")
    for option, message in [
        ("--kafka-explore=many", "write a number of random combinations"),
        ("--kafka-replay=explode at Produce#1", "there is no fault 'explode'"),
    ]:
        result = pytester.runpytest_subprocess(option)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"*{message}*"])


def test_test_that_fails_in_its_clean_run_is_not_explored(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_app="def test_order(kafka):\n    assert False, 'no'")
    result = pytester.runpytest_subprocess("--kafka-explore")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*not explored: the test fails without a fault: AssertionError: no*"])


def test_tests_without_the_fixture_and_skipped_tests_are_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_app="import pytest\ndef test_plain(): pass\ndef test_skipped(kafka): pytest.skip('not here')"
    )
    pytester.runpytest_subprocess("--kafka-explore").assert_outcomes(passed=1, skipped=1)
