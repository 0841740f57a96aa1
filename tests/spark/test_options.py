"""Options: each is honoured, refused or answered with one warning, and the page of them is current."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from ottla.spark.client_settings import NAMES, answer
from ottla.spark.network.options import NetworkPlan
from ottla.spark.network.source import NetworkSource
from ottla.spark.options import OptionError, Options
from ottla.testing import Cluster

from .direct import make_source, plan

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
GIVEN = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(topics=["orders"]) as running:
        yield running


def test_options_page_is_current() -> None:
    command = [sys.executable, str(ROOT / "tools" / "generate_spark_options.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT / "src")})
    assert done.returncode == 0, done.stderr


def test_every_setting_has_an_answer_for_reads_and_writes() -> None:
    for name in NAMES:
        for side in ("read", "write"):
            result = answer(name, side)
            assert result is not None, name
            assert (result.kind == "honoured") != bool(result.reason), name
    assert answer("no.such.setting", "read") is None


@pytest.mark.parametrize("name", sorted(NAMES))
def test_setting_is_accepted_refused_or_noted(name: str) -> None:
    result = answer(name, "read")
    assert result is not None
    if result.kind == "refused":
        with pytest.raises(OptionError, match=rf"kafka\.{name} is not supported: "):
            Options("ottla", GIVEN | {f"kafka.{name}": "1"}, ["subscribe"], side="read")
        return
    options = Options("ottla", GIVEN | {f"kafka.{name}": "1"}, ["subscribe"], side="read")
    assert options.ignored == (() if result.kind == "honoured" else ((f"kafka.{name}", result.reason),))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("kafka.ssl.truststore.locaton", "did you mean kafka.ssl.truststore.location?"),
        ("kafka.ssl.keystore.pasword", "did you mean kafka.ssl.keystore.password?"),
        ("kafka.sasl.jaas.conf", "did you mean kafka.sasl.jaas.config?"),
        ("kafka.security.protocl", "did you mean kafka.security.protocol?"),
        ("kafka.what.is.this", "Kafka's clients have no such setting."),
    ],
)
def test_misspelt_setting_is_refused(name: str, hint: str) -> None:
    with pytest.raises(OptionError) as raised:
        NetworkPlan.parse(GIVEN | {name: "x"}, streaming=None)
    assert str(raised.value) == f"ottla has no option {name}; {hint}"


def test_ignored_options_are_named_once_in_a_warning(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    source_options = {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "subscribe": "orders",
        "kafka.max.poll.records": "9",
        "kafka.linger.ms": "5",
        "groupIdPrefix": "mine",
        "startingTimestamp": "5",
        "startingOffsets": "earliest",
        "startingOffsetsByTimestampStrategy": "latest",
        "maxOffsetsPerTrigger": "10",
    }
    make_source(NetworkSource, source_options)[0].reader(NetworkSource(source_options).schema())
    capfd.readouterr()
    plan(NetworkSource, source_options)
    assert sorted(capfd.readouterr().err.splitlines()) == [
        "ottla: the option groupIdPrefix has no effect: reads join no group; the option groupId commits the offsets of "
        "a stream",
        "ottla: the option kafka.linger.ms has no effect: it is a setting of producers",
        "ottla: the option kafka.max.poll.records has no effect: a task takes whole responses: use "
        "kafka.max.partition.fetch.bytes",
        "ottla: the option maxOffsetsPerTrigger has no effect: it is for streams, and this is a batch read",
        "ottla: the option startingOffsets has no effect: startingTimestamp overrides it",
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15m", 900),
        ("30s", 30),
        ("250ms", 0.25),
        ("500", 0.5),
        ("1 hour", 3600),
        ("INTERVAL 1 hour 30 minutes", 5400),
        ("interval '2' days", 172_800),
        ("10 min", 600),
    ],
)
def test_durations_are_those_of_spark(text: str, seconds: float) -> None:
    assert Options("ottla", {"maxTriggerDelay": text}, ["maxTriggerDelay"]).seconds("maxTriggerDelay", 0) == seconds


@pytest.mark.parametrize("text", ["soon", "1 fortnight", "", "5 5", "-1s", "1.5h"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="maxTriggerDelay must be a time with its unit, for example 15m, 30s"):
        Options("ottla", {"maxTriggerDelay": text}, ["maxTriggerDelay"]).seconds("maxTriggerDelay", 0)
