"""The operations of the control API that explore a test in another language."""

from __future__ import annotations

from typing import Any, TypedDict

from ottla.testing.http.operation import Field, Operation


class ExplorationRun(TypedDict):
    """A run to make: start the application now. `done` if there is none; `schedule` replays it."""

    exploration: int
    done: bool
    run: int
    schedule: str | None
    faults: list[str]


class RunResult(TypedDict):
    """The verdict on a run: passed, reported or failed; and the promises that it broke."""

    verdict: str
    violations: list[str]


class ExplorationReport(TypedDict):
    """The HTML report of an exploration."""

    html: str


def _start_exploration(cluster: Any, _: dict[str, str], body: Any) -> dict[str, Any]:
    options = dict(body)
    result: dict[str, Any] = cluster.explorations.start(options.pop("name", "test"), options).result()
    return result


def _exploration(cluster: Any, path: dict[str, str], _: Any) -> dict[str, Any]:
    result: dict[str, Any] = cluster.explorations.find(int(path["exploration"])).result()
    return result


def _next_run(cluster: Any, path: dict[str, str], _: Any) -> ExplorationRun:
    run: ExplorationRun = cluster.explorations.find(int(path["exploration"])).next_run()
    return run


def _finish_run(cluster: Any, path: dict[str, str], body: Any) -> RunResult:
    result: RunResult = cluster.explorations.find(int(path["exploration"])).finish_run(**body)
    return result


def _exploration_report(cluster: Any, path: dict[str, str], _: Any) -> ExplorationReport:
    from ottla.testing.explore.html_report import html_report

    return {"html": html_report([_exploration(cluster, path, None)])}


EXPLORATIONS = (
    Operation(
        "POST",
        "/explorations",
        "Start to explore a test with Kafka's faults",
        _start_exploration,
        {
            "name": Field("string", "name of the test in reports"),
            "faults": Field("array", "only these faults; see docs/explorer.md", items="string"),
            "apis": Field("array", "only requests of these APIs", items="string"),
            "combinations": Field("integer", "number of random combinations after the single faults, 0 by default"),
            "seed": Field("integer", "seed of the combinations, 1 by default"),
            "budget": Field("string", "time after which the exploration ends, such as 60s"),
            "late": Field("string", "delay of late responses, 1s by default"),
            "checks": Field("array", "only these checks of the history", items="string"),
            "every_point": Field("boolean", "explore every request, not only three of those that behave alike"),
            "max_findings": Field("integer", "end after this many different failures, 3 by default"),
        },
        returns=dict[str, Any],
    ),
    Operation(
        "GET", "/explorations/{exploration}", "Show the result of an exploration", _exploration, returns=dict[str, Any]
    ),
    Operation(
        "POST",
        "/explorations/{exploration}/next",
        "Reset the cluster and prepare the next run; then run the application",
        _next_run,
        returns=ExplorationRun,
    ),
    Operation(
        "POST",
        "/explorations/{exploration}/verdict",
        "Report how the application did in the run in progress",
        _finish_run,
        {
            "passed": Field("boolean", "whether the test passed", required=True),
            "message": Field("string", "why it failed"),
            "reported": Field("boolean", "the test failed because the client library reported the fault"),
        },
        returns=RunResult,
    ),
    Operation(
        "GET",
        "/explorations/{exploration}/report",
        "Return the HTML report of an exploration",
        _exploration_report,
        returns=ExplorationReport,
    ),
)
