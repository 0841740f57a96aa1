"""The history checker, where tests look for it; it is `ottla.history`, which the analyses on Spark use too."""

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
