"""The history checker: one history per anomaly, and correct histories that look suspicious."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from ottla import history
from ottla.history import AnomalyKind, Operation, Report, check_history, read_history, write_history


def checked(text: str, **options: bool) -> Report:
    return check_history(read_history(text.splitlines()), **options)


def sent(process: str, value: int, offset: int | None, status: str = "ok", partition: str = "a-0") -> str:
    step = {"send": partition, "value": value, **({} if offset is None else {"offset": offset})}
    return json.dumps({"process": process, "status": status, "steps": [step]})


def polled(process: str, *pairs: tuple[int, int], partition: str = "a-0", status: str = "ok") -> str:
    return json.dumps({"process": process, "status": status, "steps": [{"poll": {partition: pairs}}]})


def transaction(process: str, status: str, *steps: dict[str, object]) -> str:
    return json.dumps({"process": process, "status": status, "steps": steps})


def kinds(*lines: str, **options: bool) -> list[AnomalyKind]:
    return sorted((anomaly.kind for anomaly in checked("\n".join(lines), **options).anomalies), key=lambda k: k.value)


# Correct histories


def test_sends_and_polls_in_order_are_ok():
    assert kinds(sent("p", 1, 0), sent("p", 2, 1), polled("c", (0, 1)), polled("c", (1, 2))) == []


def test_marker_offsets_are_not_skipped_values():
    assert kinds(sent("p", 1, 0), sent("p", 2, 2), polled("c", (0, 1), (2, 2))) == []


def test_aborted_values_may_be_skipped():
    assert kinds(sent("p", 1, 0), sent("p", 2, 1, "fail"), sent("p", 3, 3), polled("c", (0, 1), (3, 3))) == []


def test_value_with_unknown_status_may_be_read_or_not():
    assert kinds(sent("p", 1, 0), sent("p", 2, None, "info"), sent("p", 3, 2), polled("c", (0, 1), (2, 3))) == []
    assert (
        kinds(sent("p", 1, 0), sent("p", 2, None, "info"), sent("p", 3, 2), polled("c", (0, 1), (1, 2), (2, 3))) == []
    )


def test_unread_values_at_the_end_are_not_lost():
    report = checked("\n".join([sent("p", 1, 0), sent("p", 2, 1), polled("c", (0, 1))]))
    assert report.ok
    assert report.unread == {"a-0": [2]}


def test_reassigned_consumer_may_change_position():
    lines = [sent("p", value, value) for value in range(3)]
    again = '{"process": "c", "assign": ["a-0"]}'
    assert kinds(*lines, polled("c", (0, 0), (1, 1), (2, 2)), again, polled("c", (0, 0), (1, 1))) == []
    assert kinds(*lines, polled("d", (0, 0), (1, 1), (2, 2)), polled("c", (0, 0)), again, polled("c", (2, 2))) == []


def test_assignment_within_transaction_resets_position():
    lines = [sent("p", value, value) for value in range(3)]
    steps = [{"poll": {"a-0": [[2, 2]]}}, {"assign": ["a-0"]}, {"poll": {"a-0": [[0, 0], [1, 1], [2, 2]]}}]
    assert kinds(*lines, transaction("t", "ok", *steps)) == []


def test_consumers_are_independent():
    lines = [sent("p", value, value) for value in range(3)]
    assert kinds(*lines, polled("c", (0, 0), (1, 1), (2, 2)), polled("d", (0, 0), (1, 1))) == []


def test_partitions_are_independent():
    assert (
        kinds(
            sent("p", 1, 5),
            sent("p", 1, 0, partition="b-0"),
            polled("c", (5, 1)),
            polled("c", (0, 1), partition="b-0"),
        )
        == []
    )


def test_empty_history_is_ok():
    assert kinds() == []


# One history per anomaly


def test_inconsistent_offsets():
    lines = [sent("p", 1, 0), sent("q", 2, 1), polled("c", (0, 1), (1, 2)), polled("d", (0, 2))]
    assert AnomalyKind.INCONSISTENT_OFFSETS in kinds(*lines)


def test_two_sends_with_same_offset_are_inconsistent():
    assert kinds(sent("p", 1, 7), sent("q", 2, 7)) == [AnomalyKind.INCONSISTENT_OFFSETS]


def test_duplicate():
    assert kinds(sent("p", 1, 0), polled("c", (0, 1), (1, 1))) == [AnomalyKind.DUPLICATE]


def test_duplicate_between_acknowledgement_and_reader():
    assert kinds(sent("p", 1, 0), polled("c", (3, 1))) == [AnomalyKind.DUPLICATE]


def test_lost_write():
    report = checked(
        "\n".join([sent("p", 1, 0), sent("p", 2, 1), sent("p", 3, 2), polled("c", (0, 1)), polled("d", (2, 3))])
    )
    (lost,) = report.anomalies
    assert lost.kind is AnomalyKind.LOST_WRITE
    assert "2 at offset 1" in lost.detail
    assert [operation.index for operation in lost.operations] == [1, 4]


def test_unread_write_is_lost_if_everything_was_read():
    lines = [sent("p", 1, 0), sent("p", 2, 1), polled("c", (0, 1))]
    assert kinds(*lines, everything_read=True) == [AnomalyKind.LOST_WRITE]
    assert kinds(sent("p", 1, None), everything_read=True) == [AnomalyKind.LOST_WRITE]


def test_half_read_transaction_of_unknown_status_is_lost_write():
    half = transaction("t", "info", {"send": "a-0", "value": 1, "offset": 0}, {"send": "b-0", "value": 2, "offset": 0})
    lines = [half, sent("p", 9, 5, partition="b-0"), polled("c", (0, 1)), polled("c", (5, 9), partition="b-0")]
    assert kinds(*lines) == [AnomalyKind.LOST_WRITE]


def test_aborted_read():
    report = checked("\n".join([sent("p", 1, 0, "fail"), polled("c", (0, 1))]))
    (aborted,) = report.anomalies
    assert aborted.kind is AnomalyKind.ABORTED_READ
    assert [operation.process for operation in aborted.operations] == ["p", "c"]


def test_unwritten_read():
    assert kinds(polled("c", (0, 4711))) == [AnomalyKind.UNWRITTEN_READ]


@pytest.mark.parametrize("status", ["ok", "info"])
def test_precommitted_read(status):
    steps = [{"send": "a-0", "value": 1, "offset": 0}, {"poll": {"a-0": [[0, 1]]}}]
    assert kinds(transaction("t", status, *steps)) == [AnomalyKind.PRECOMMITTED_READ]


def test_own_read_of_aborted_transaction_is_precommitted_read():
    steps = [{"send": "a-0", "value": 1, "offset": 0}, {"poll": {"a-0": [[0, 1]]}}]
    assert kinds(transaction("t", "fail", *steps)) == [AnomalyKind.PRECOMMITTED_READ]


def test_poll_skip():
    lines = [sent("p", value, value) for value in range(3)]
    report = checked("\n".join([*lines, polled("d", (0, 0), (1, 1), (2, 2)), polled("c", (0, 0)), polled("c", (2, 2))]))
    (skip,) = report.anomalies
    assert skip.kind is AnomalyKind.POLL_SKIP
    assert [operation.index for operation in skip.operations] == [4, 5, 1]


def test_internal_poll_skip():
    lines = [sent("p", value, value) for value in range(3)]
    assert kinds(*lines, polled("d", (0, 0), (1, 1), (2, 2)), polled("c", (0, 0), (2, 2))) == [
        AnomalyKind.INTERNAL_POLL_SKIP
    ]


def test_non_monotonic_poll():
    lines = [sent("p", value, value) for value in range(3)]
    assert kinds(*lines, polled("c", (0, 0), (1, 1)), polled("c", (1, 1), (2, 2))) == [AnomalyKind.NONMONOTONIC_POLL]


def test_internal_non_monotonic_poll():
    steps = [{"poll": {"a-0": [[0, 0], [1, 1]]}}, {"poll": {"a-0": [[0, 0]]}}]
    assert kinds(sent("p", 0, 0), sent("p", 1, 1), transaction("t", "ok", *steps)) == [
        AnomalyKind.INTERNAL_NONMONOTONIC_POLL
    ]


def test_non_monotonic_send():
    assert kinds(sent("p", 1, 5), sent("p", 2, 3)) == [AnomalyKind.NONMONOTONIC_SEND]


def test_internal_non_monotonic_send():
    steps = [{"send": "a-0", "value": 1, "offset": 5}, {"send": "a-0", "value": 2, "offset": 4}]
    assert kinds(transaction("t", "ok", *steps)) == [AnomalyKind.INTERNAL_NONMONOTONIC_SEND]


def test_offsets_of_aborted_sends_are_ignored():
    assert kinds(sent("p", 1, 5, "fail"), sent("p", 2, 3)) == []


# Reports and files


def test_report_shows_proving_operations():
    text = str(checked("\n".join([sent("p", 1, 0, "fail"), polled("c", (0, 1))])))
    assert text.splitlines() == [
        "1 values sent, 1 read, 1 anomalies",
        "aborted read (G1a) in a-0: 1 was read and its transaction aborted",
        '    #0 {"process": "p", "status": "fail", "steps": [{"send": "a-0", "value": 1, "offset": 0}]}',
        '    #1 {"process": "c", "status": "ok", "steps": [{"poll": {"a-0": [[0, 1]]}}]}',
    ]


def test_history_round_trip():
    lines = [
        sent("p", 1, 0),
        transaction("t", "info", {"poll": {"a-0": [[0, 1]]}}, {"assign": ["a-0"]}, {"send": "b-0", "value": "x"}),
        '{"process": "c", "start": 1.5, "end": 2, "assign": ["a-0", "b-1"]}',
    ]
    once = list(write_history(read_history(lines)))
    assert list(write_history(read_history(once))) == once
    assert json.loads(once[2]) == json.loads(lines[2])


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"process": "p", "status": "maybe", "steps": []}',
        '{"process": "p", "status": "ok", "steps": [{"send": "a-0"}]}',
        '{"process": "p", "status": "ok", "steps": [{"poll": {"a-0": [[1]]}}]}',
        '{"process": "p", "status": "ok", "steps": [{"poll": {"a-0": [["x", 1]]}}]}',
    ],
)
def test_malformed_line_is_reported_with_its_number(line):
    with pytest.raises(ValueError, match="line 2"):
        read_history(["", line])


def test_checker_does_not_import_the_broker():
    imports = [
        alias.name if isinstance(node, ast.Import) else node.module or ""
        for node in ast.walk(ast.parse(Path(history.__file__).read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]
    assert not [name for name in imports if name.startswith("ottla")]


def test_long_history_is_checked_in_one_pass():
    lines = [Operation("p", "ok", [history.Send("a-0", value, value)]) for value in range(20_000)]
    lines += [Operation("c", "ok", [history.Poll({"a-0": [(value, value)]})]) for value in range(20_000)]
    assert check_history(lines, everything_read=True).ok
