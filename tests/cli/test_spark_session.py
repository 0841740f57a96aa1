"""Commands that run on Spark: a failure to start is one sentence, and the JVM's output is in a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ottla.cli.spark.session import quiet_session
from ottla.spark.session import SparkSetupError

JVM_OUTPUT = """WARNING: Using incubator modules: jdk.incubator.vector
Exception in thread "main" org.apache.spark.SparkException: Could not parse Master URL: 'bogus'
\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1047)
"""


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception, output: str) -> str:
    def start(*_: object, **__: object) -> None:
        os.write(2, output.encode())
        raise error

    monkeypatch.setattr(sys.modules["ottla.spark.session"], "session", start)
    with pytest.raises(SparkSetupError) as failure:
        quiet_session("test", master=None, config={})
    return str(failure.value)


def test_ended_jvm_is_explained_by_its_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")
    sentence = failing(monkeypatch, error, JVM_OUTPUT)
    assert sentence.startswith("Spark did not start: Could not parse Master URL: 'bogus' (its output is in ")
    file = Path(sentence.rpartition(" is in ")[2].rstrip(")"))
    assert file.read_text() == JVM_OUTPUT
    file.unlink()


def test_exception_of_the_jvm_is_explained_by_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("An error occurred while calling o1.x.\n: org.apache.spark.SparkException: no master\n\tat x")
    sentence = failing(monkeypatch, error, "")
    assert sentence.startswith("Spark did not start: no master (")
    Path(sentence.rpartition(" is in ")[2].rstrip(")")).unlink()


def test_setup_error_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failing(monkeypatch, SparkSetupError("no Java"), JVM_OUTPUT) == "no Java"
