"""The history checker (`ottla.history`) under the test kit's name."""

from ottla.history import (
    FAIL,
    INFO,
    OK,
    Anomaly,
    AnomalyKind,
    Assign,
    Operation,
    Poll,
    Report,
    Send,
    Step,
    check_history,
    read_history,
    write_history,
)

__all__ = [
    "FAIL",
    "INFO",
    "OK",
    "Anomaly",
    "AnomalyKind",
    "Assign",
    "Operation",
    "Poll",
    "Report",
    "Send",
    "Step",
    "check_history",
    "read_history",
    "write_history",
]
