"""Option groups: one dataclass field is one option; the command gets the object. Tab completion."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated

import typer
from typer.testing import CliRunner

from ottla.cli.options.commands import add_command, expand_options
from ottla.cli.options.completion import complete_groups, complete_topics
from ottla.cli.options.connect import ClusterOptions

from .live import run

if TYPE_CHECKING:
    from ottla.testing import Cluster


@dataclass(frozen=True, slots=True)
class Speed:
    """Two options."""

    fast: Annotated[bool, typer.Option("--fast", help="Hurry.")] = False
    limit: Annotated[int, typer.Option("--limit", "-l", help="Stop at N.")] = 3


def go(
    where: Annotated[str, typer.Argument(help="Where to.")],
    speed: Speed,
    twice: Annotated[bool, typer.Option("--twice", help="Again.")] = False,
) -> None:
    """Go there."""
    typer.echo(f"{where} {twice} {speed}")


def test_group_is_expanded_after_the_commands_own_options() -> None:
    assert list(inspect.signature(expand_options(go)).parameters) == ["where", "twice", "fast", "limit"]


def test_command_gets_the_object_of_its_option_group() -> None:
    app = typer.Typer()
    add_command(app, "go", go, "go home")
    result = CliRunner().invoke(app, ["home", "-l", "5", "--twice"])
    assert (result.exit_code, result.stdout) == (0, f"home True {Speed(limit=5)}\n")


def test_function_without_groups_is_not_wrapped() -> None:
    def plain(word: str) -> None:
        """Do nothing."""

    assert expand_options(plain) is plain


def test_commands_of_a_cluster_have_the_same_connection_options() -> None:
    assert list(inspect.signature(ClusterOptions).parameters) == [
        "bootstrap",
        "properties",
        "properties_file",
        "timeout",
    ]


def test_topics_and_groups_are_completed(cluster: Cluster) -> None:
    for name in ("tab-a", "tab-b", "other"):
        cluster.create_topic(name, 1)
    run(cluster.bootstrap, "group", "reset-offsets", "tab-group", "-t", "tab-a", "--to-earliest", "--execute")
    context = SimpleNamespace(params={"bootstrap": cluster.bootstrap})
    assert complete_topics(context, [], "tab-") == ["tab-a", "tab-b"]
    assert complete_groups(context, [], "tab-") == ["tab-group"]


def test_completion_without_a_cluster_is_empty_and_silent(capfd: object) -> None:
    assert complete_topics(SimpleNamespace(params={"bootstrap": "127.0.0.1:1"}), [], "") == []
    assert complete_topics(SimpleNamespace(params={"properties": ["nonsense"]}), [], "") == []
    assert capfd.readouterr() == ("", "")  # type: ignore[attr-defined]
