"""Registers commands with typer: examples in the help, and option groups, which typer itself does not have.

A parameter whose type is a dataclass with typer's annotations (`ClusterOptions`, `SparkOptions`) stands for one option
per field: typer sees the fields, the command gets the object.
"""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from ottla.cli import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Callable


def add_command(app: typer.Typer, name: str, function: Callable[..., None], *examples: str) -> None:
    """Add a command to an app; its help ends with the examples."""
    app.command(name, epilog=format_examples(*examples))(expand_options(function))


def add_group(app: typer.Typer, name: str) -> typer.Typer:
    """Add a group of commands, such as `ottla topic`, and return it."""
    group = typer.Typer(name=name, help=COMMANDS[name].help, no_args_is_help=True)
    app.add_typer(group)
    return group


def format_examples(*lines: str) -> str:
    """Return the end of a command's help. The mark `\\b` keeps typer from joining the lines."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def expand_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function with one parameter per field of each option group, which calls `function` with the groups."""
    hints = get_type_hints(function, include_extras=True)
    own: list[inspect.Parameter] = []
    grouped: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if isinstance(hint, type) and is_dataclass(hint):
            groups[parameter.name] = hint
            grouped += _field_parameters(hint)
        else:
            own.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hint))
    if not groups:
        return function

    @wraps(function)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        function(**values)

    parameters = [*own, *grouped]  # the options of a group come last in the help
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _field_parameters(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
