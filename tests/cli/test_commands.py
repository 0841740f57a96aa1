"""Rules that every command follows."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from ottla.cli import COMMANDS, build

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Return every command that is not a group, by its whole name."""
    if hasattr(command, "commands"):
        for word in command.list_commands(None):
            yield from commands(command.get_command(None, word), f"{name} {word}")
    else:
        yield name, command


ROOT = typer.main.get_command(build())
ALL = dict(commands(ROOT, "ottla"))


def test_walk_finds_every_command() -> None:
    assert len(ALL) > 50
    assert {name.split()[1] for name in ALL} == set(COMMANDS)


@pytest.mark.parametrize("name", ALL)
def test_command_has_json_output(name: str) -> None:
    assert "--json" in {flag for param in ALL[name].params for flag in param.opts}


@pytest.mark.parametrize("name", ALL)
def test_command_has_summary_and_valid_examples(name: str) -> None:
    command = ALL[name]
    mark, title, *examples = (command.epilog or "").splitlines()
    assert (command.help or "").splitlines()[0].rstrip().endswith("."), "a sentence"
    assert (mark, title) == ("\b", "Examples:")
    assert examples
    flags = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
    for example in examples:
        assert name in example
        assert len(example) <= 78, "fits into 80 columns with its indentation"
        words = example.partition(name)[2].partition(" -- ")[0].split()
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= flags, example


@pytest.mark.parametrize("name", ALL)
def test_parameter_has_help(name: str) -> None:
    for param in ALL[name].params:
        assert getattr(param, "help", None), param.name


@pytest.mark.parametrize("name", ALL)
def test_option_help_is_a_verb_phrase(name: str) -> None:
    no_verbs = {"a", "also", "an", "every", "first", "full", "last", "name", "number", "one", "only", "the", "type"}
    for param in ALL[name].params:
        if param.param_type_name == "option":
            first = param.help.split()[0]
            assert first.isalpha(), f"{param.name}: {param.help}"
            assert first.lower() not in no_verbs, f"{param.name}: {param.help}"
            assert param.help.endswith("."), f"{param.name}: {param.help}"


def test_help_imports_no_command() -> None:
    program = (
        "import sys\n"
        "from ottla.cli import build\n"
        "try: build()(['--help'])\n"
        "except SystemExit: print(*sys.modules, sep='\\n', file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = set(done.stderr.splitlines())
    assert {name for name in imported if name.startswith("ottla.")} == {"ottla.cli"}
    assert not imported & {"rich", "asyncio", "json", "socket", "ssl"}
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


def test_table_of_commands_has_the_commands_own_help() -> None:
    for name, row in COMMANDS.items():
        assert ROOT.get_command(None, name).help.splitlines()[0] == row.help  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", [(), *((name,) for name in COMMANDS), *(tuple(name.split()[1:]) for name in ALL)])
def test_help_fits_into_80_columns(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(build(), [*words, "--help"], env={"COLUMNS": "80"}).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert not any(line.endswith("...") for line in shown.partition("Commands:")[2].splitlines()), "a cut summary"


@pytest.mark.parametrize(("word", "hint"), [("topics", "did you mean topic?"), ("xyzzy", "there are acl, analyze")])
def test_unknown_command_suggests_a_name(word: str, hint: str) -> None:
    result = CliRunner().invoke(build(), [word])
    assert result.exit_code == 2
    assert hint in " ".join(result.stderr.split())
