"""What is true of every command, whatever it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import typer

from ottla.cli import COMMANDS, build

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its whole name."""
    if hasattr(command, "commands"):
        for word, each in command.commands.items():
            yield from commands(each, f"{name} {word}")
    else:
        yield name, command


ALL = dict(commands(typer.main.get_command(build(list(COMMANDS))), "ottla"))


def test_all_commands_are_walked() -> None:
    assert len(ALL) > 50
    assert {name.split()[1] for name in ALL} == set(COMMANDS)


@pytest.mark.parametrize("name", ALL)
def test_a_command_prints_json_if_asked(name: str) -> None:
    assert "--json" in {flag for each in ALL[name].params for flag in each.opts}


@pytest.mark.parametrize("name", ALL)
def test_a_command_says_what_it_does_and_shows_examples_of_itself(name: str) -> None:
    command = ALL[name]
    title, *examples = (command.epilog or "").split("\n\n")
    assert (command.help or "").splitlines()[0].rstrip().endswith("."), "a sentence"
    assert title == "Examples:"
    assert examples
    flags = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
    for example in examples:
        assert name in example
        words = example.partition(name)[2].partition(" -- ")[0].split()
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= flags, example


@pytest.mark.parametrize("name", ALL)
def test_every_option_and_argument_is_explained(name: str) -> None:
    for each in ALL[name].params:
        assert getattr(each, "help", None), each.name
