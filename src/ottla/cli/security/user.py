"""`ottla user`: list, set and delete SCRAM users. Passwords come from a prompt or a pipe, never from an argument."""

import sys
from enum import StrEnum
from typing import Annotated

import typer

from ottla.cli.options.commands import add_command, add_group
from ottla.cli.options.connect import AsJson, ClusterOptions
from ottla.cli.terminal.output import print_json, print_result, print_table, usage
from ottla.client.access import delete_user, list_users, set_password
from ottla.cluster.security.scram import MAX_ITERATIONS, MIN_ITERATIONS

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]


class Mechanism(StrEnum):
    """Kafka's SCRAM mechanisms."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    user = add_group(app, "user")
    add_command(user, "list", list_, "ottla user list", "ottla user list --json")
    add_command(
        user, "set", set_, "ottla user set alice", "pass show kafka/alice | ottla user set alice -m SCRAM-SHA-512"
    )
    add_command(user, "delete", delete, "ottla user delete alice")


def list_(*, as_json: AsJson = False, cluster: ClusterOptions) -> None:
    """List users with their SCRAM mechanisms."""
    with cluster.connect() as client:
        users = sorted(list_users(client).items())
    if as_json:
        for name, mechanisms in users:
            print_json({"user": name, "mechanisms": mechanisms})
        return
    print_table(
        ("USER", "MECHANISM", "ITERATIONS"),
        [(name, mechanism, count) for name, mechanisms in users for mechanism, count in mechanisms.items()],
        right=("ITERATIONS",),
    )


def set_(
    name: Name,
    *,
    mechanism: Annotated[
        list[Mechanism] | None,
        typer.Option("--mechanism", "-m", help="Set a credential for this mechanism; repeatable.", show_default="both"),
    ] = None,
    iterations: Annotated[
        int,
        typer.Option(
            "--iterations",
            metavar="N",
            min=MIN_ITERATIONS,
            max=MAX_ITERATIONS,
            help="Hash the password N times; a higher number slows down guessing and logins.",
        ),
    ] = MIN_ITERATIONS,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Set a user's password.

    Prompts for the password, or reads it from the first line of standard input. Only the salted hash leaves this
    machine.
    """
    password = _read_password(name)
    chosen = [choice.value for choice in mechanism or Mechanism]
    with cluster.connect() as client:
        for mechanism_name in chosen:
            set_password(client, name, password, mechanism_name, iterations)
    row = {"user": name, "mechanisms": dict.fromkeys(chosen, iterations)}
    print_result(as_json, row, f"{name} can log in with {', '.join(chosen)}")


def delete(
    name: Name,
    *,
    mechanism: Annotated[
        list[Mechanism] | None,
        typer.Option(
            "--mechanism", "-m", help="Delete only this mechanism's credential; repeatable.", show_default="all"
        ),
    ] = None,
    as_json: AsJson = False,
    cluster: ClusterOptions,
) -> None:
    """Delete a user's SCRAM credentials."""
    with cluster.connect() as client:
        chosen = [choice.value for choice in mechanism] if mechanism else list(list_users(client, [name])[name])
        delete_user(client, name, chosen)
    row = {"user": name, "removed": chosen}
    print_result(as_json, row, f"{name} can no longer log in with {', '.join(chosen)}")


def _read_password(name: str) -> str:
    if sys.stdin.isatty():
        return str(typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True))
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise usage("user set: standard input holds no password")
    return password
