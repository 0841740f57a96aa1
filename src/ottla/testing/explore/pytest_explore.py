"""The explorer as a part of the pytest plugin: `--kafka-explore`, `--kafka-replay`, kafka_regressions.json.

An explored test runs many times within one pytest item: fixtures are set up and torn down for each run, and the report
of the item is the report of the exploration.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol

from ottla.testing.explore.explorer import drive
from ottla.testing.explore.options import explore_options, parse_seconds
from ottla.testing.explore.pytest_options import EXPLORATION, EXPLORE_ALL, FILE_NAME, MARKER, PROPERTY, explores
from ottla.testing.explore.regressions import add_regressions, read_regressions
from ottla.testing.explore.runner import Runner
from ottla.testing.explore.schedule import CLEAN, Schedule, parse_schedule
from ottla.testing.explore.strategy import Strategy, replay
from ottla.testing.explore.text_report import finding_text, result_text, summary

if TYPE_CHECKING:
    from ottla.testing.cluster import Cluster
    from ottla.testing.explore.options import ExploreOptions
    from ottla.testing.explore.outcome import Outcome, Result


def check_options(config: pytest.Config) -> None:
    """Check the options."""
    try:
        if config.getoption("kafka_replay"):
            parse_schedule(config.getoption("kafka_replay"))
        if config.getoption("kafka_budget"):
            parse_seconds(config.getoption("kafka_budget"))
        _combinations(config)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Split an explored test into one item for each worker, and add one item for each regression."""
    if "kafka" not in metafunc.fixturenames:
        return
    config = metafunc.config
    if config.getoption("kafka_replay"):
        return
    if explores(config, metafunc.definition):
        shards = int(getattr(config, "workerinput", {}).get("workercount", 1))
        if shards > 1:
            metafunc.parametrize(
                "kafka",
                range(shards),
                indirect=True,
                ids=[f"part {number + 1} of {shards}" for number in range(shards)],
            )
        return
    schedules = read_regressions(config.rootpath / FILE_NAME).get(metafunc.definition.nodeid, [])
    if schedules:
        metafunc.parametrize(
            "kafka", [CLEAN, *schedules], indirect=True, ids=["no faults", *(str(schedule) for schedule in schedules)]
        )


def run_item(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Explore or replay a test instead of running it once; None leaves it to pytest."""
    if "kafka" not in getattr(item, "fixturenames", ()) or not isinstance(item, pytest.Function):
        return None
    config = item.config
    replayed = config.getoption("kafka_replay")
    parameter = item.callspec.params.get("kafka") if hasattr(item, "callspec") else None
    schedule = parse_schedule(replayed) if replayed else parameter if isinstance(parameter, Schedule) else None
    if schedule is None and not explores(config, item):
        return None
    if schedule is not None and not schedule.faults:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    ItemExploration(item, nextitem).run(schedule, parameter if isinstance(parameter, int) else 0)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


class ItemExploration:
    """The exploration of one pytest item."""

    def __init__(self, item: pytest.Function, nextitem: pytest.Item | None) -> None:
        self._item = item
        self._nextitem = nextitem
        self._options = _options(item)
        self.error: BaseException | None = None
        self._reports: list[pytest.TestReport] = []
        self.runner = Runner(self._start_cluster, self._options)
        item.stash[EXPLORATION] = self

    def _start_cluster(self) -> Cluster:
        from ottla.testing.cluster import Cluster
        from ottla.testing.pytest_plugin import cluster_options

        return Cluster(**cluster_options(self._item)).start()

    def run(self, schedule: Schedule | None, shard: int) -> None:
        """Explore the test, or replay a schedule, and report the result as the result of the item."""
        import dataclasses

        item = self._item
        workers = int(getattr(item.config, "workerinput", {}).get("workercount", 1))
        shards = workers if hasattr(item, "callspec") and "kafka" in item.callspec.params else 1
        options = dataclasses.replace(self._options, shard=shard, shards=shards)
        try:
            if schedule is None:
                nodes = self.runner.cluster().nodes()
                strategy = Strategy(item.nodeid, options, nodes=len(nodes))
                drive(strategy.runs(), self._run_once)
                result = strategy.result
            else:
                result = drive(replay(item.nodeid, schedule, 1), self._run_once)
        finally:
            self.runner.close()
            del item.stash[EXPLORATION]
        self._report(result, replayed=schedule is not None)
        item.session._setupstate.teardown_exact(self._nextitem)

    def _run_once(self, schedule: Schedule) -> Outcome:
        return self.runner.run(schedule, self._call)

    def _call(self, _: Cluster) -> BaseException | None:
        self.error = None
        self._item._initrequest()
        # pytest tears down what its next item does not share: with the parent, that is the item and nothing else.
        parent: Any = self._item.parent
        self._reports = runtestprotocol(self._item, nextitem=parent, log=False)
        error, self.error = self.error, None
        return error

    def note_exception(self, call: pytest.CallInfo[Any]) -> None:
        """Remember the first exception of the run in progress."""
        if call.excinfo is not None and self.error is None:
            self.error = call.excinfo.value

    def _report(self, result: Result, *, replayed: bool) -> None:
        item = self._item
        failed = bool(result.findings) or (result.problem is not None and not result.problem.startswith("skipped"))
        if replayed and result.notes and not failed:
            failed, result.problem = True, result.notes[0]
        name = item.nodeid if not hasattr(item, "callspec") else item.nodeid.partition("[")[0]
        described = result.to_json()
        for finding, fields in zip(result.findings, described["findings"], strict=True):
            fields["replay"] = f"pytest {shlex.quote(name)} --kafka-replay={shlex.quote(str(finding.schedule))}"
        if item.config.getoption("kafka_save") and not replayed:
            schedules = [finding.schedule for finding in result.findings if finding.schedule.faults]
            if schedules:
                add_regressions(item.config.rootpath / FILE_NAME, name, schedules)
        for report in self._reports:
            if report.when == "call":
                report.sections = []
                report.user_properties.append((PROPERTY, json.dumps(described)))
                if failed:
                    report.outcome = "failed"
                    report.longrepr = _failure_text(result, described)
                elif report.outcome == "failed":  # the last run failed as a repetition, or raised a reported error
                    report.outcome, report.longrepr = "passed", None
            elif report.outcome == "failed" and not failed:
                continue
            item.ihook.pytest_runtest_logreport(report=report)


def _failure_text(result: Result, described: dict[str, Any]) -> str:
    if result.problem is not None:
        return summary(described)
    findings = [
        finding_text(finding, fields["replay"])
        for finding, fields in zip(result.findings, described["findings"], strict=True)
    ]
    return "\n\n".join([*findings, result_text(described)])


def write_summary(terminal: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write one line for each explored test, and the HTML report."""
    results = [
        json.loads(str(value))
        for reports in terminal.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name == PROPERTY
    ]
    if not results:
        return
    from ottla.testing.explore.html_report import html_report

    terminal.section("Kafka fault exploration")
    for result in results:
        terminal.line(summary(result))
        for note in dict.fromkeys(result["notes"]):
            terminal.line(f"  note: {note}")
    path = Path(config.getoption("kafka_report") or config.rootpath / "kafka-explore.html")
    path.write_text(html_report(results), encoding="utf-8")
    terminal.line(f"report: {path}")


def _combinations(config: pytest.Config) -> int | None:
    """Return N of --kafka-explore=N; None if every single fault is to be explored."""
    text = config.getoption("kafka_explore")
    if text in (None, EXPLORE_ALL):
        return None
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"--kafka-explore={text}: write a number of random combinations, or no value")
    return int(text)


def _options(item: pytest.Item) -> ExploreOptions:
    import dataclasses

    marker = item.get_closest_marker(MARKER)
    keywords = dict(marker.kwargs) if marker is not None else {}
    if marker is not None and marker.args:
        raise pytest.UsageError(f"{item.nodeid}: the marker {MARKER} takes keywords only, such as budget='60s'")
    config = item.config
    if config.getoption("kafka_seed") is not None:
        keywords["seed"] = config.getoption("kafka_seed")
    if config.getoption("kafka_budget") is not None:
        keywords["budget"] = config.getoption("kafka_budget")
    combinations = _combinations(config)
    if combinations is not None:
        keywords["combinations"] = combinations
    try:
        options = explore_options(**keywords)
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"{item.nodeid}: {MARKER}: {error}") from None
    return options if combinations is None else dataclasses.replace(options, singles=False)
