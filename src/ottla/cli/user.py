"""`ottla user`: users with SCRAM credentials, in any Kafka cluster. Passwords come from a prompt or a pipe."""

import sys
from enum import StrEnum
from typing import Annotated

import typer

from ottla.cli.connect import LOCAL, SECONDS, AsJson, Bootstrap, Properties, PropertiesFile, Timeout, connected
from ottla.cli.output import echo, examples, print_json, print_table, usage
from ottla.client.security import delete_user, list_users, set_password

ITERATIONS = 4096


class Mechanism(StrEnum):
    """The kinds of SCRAM."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    user = typer.Typer(name="user", help="Users of any Kafka cluster (SCRAM).", no_args_is_help=True)
    user.command("list", epilog=examples("ottla user list", "ottla user list --json"))(list_)
    user.command(
        "set",
        epilog=examples("ottla user set alice", "pass show kafka/alice | ottla user set alice -m SCRAM-SHA-512"),
    )(set_)
    user.command("delete", epilog=examples("ottla user delete alice"))(delete)
    app.add_typer(user)


def list_(
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """List users and how they can log in."""
    with connected(bootstrap, properties, command_config, timeout) as client:
        found = sorted(list_users(client).items())
    if as_json:
        for name, mechanisms in found:
            print_json({"user": name, "mechanisms": mechanisms})
        return
    print_table(
        ("USER", "MECHANISM", "ITERATIONS"),
        [(name, mechanism, count) for name, each in found for mechanism, count in each.items()],
        right=("ITERATIONS",),
    )


def set_(
    name: Annotated[str, typer.Argument(help="The user's name.")],
    mechanism: Annotated[
        list[Mechanism] | None, typer.Option("--mechanism", "-m", help="How they log in; may be repeated.")
    ] = None,
    iterations: Annotated[int, typer.Option("--iterations", help="How often the password is hashed.")] = ITERATIONS,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Give a user a password: it is asked for, or read from standard input. Only its salted hash is sent."""
    password = _password(name)
    chosen = mechanism or [Mechanism.SHA_256, Mechanism.SHA_512]
    with connected(bootstrap, properties, command_config, timeout) as client:
        for each in chosen:
            set_password(client, name, password, each.value, iterations)
    if as_json:
        print_json({"user": name, "mechanisms": {each.value: iterations for each in chosen}})
    else:
        echo(f"{name} can log in with {', '.join(each.value for each in chosen)}")


def delete(
    name: Annotated[str, typer.Argument(help="The user's name.")],
    mechanism: Annotated[
        list[Mechanism] | None, typer.Option("--mechanism", "-m", help="Only this one; may be repeated.")
    ] = None,
    bootstrap: Bootstrap = LOCAL,
    properties: Properties = None,
    command_config: PropertiesFile = None,
    timeout: Timeout = SECONDS,
    as_json: AsJson = False,
) -> None:
    """Take a user's credentials away."""
    with connected(bootstrap, properties, command_config, timeout) as client:
        known = list_users(client, [name])[name]
        chosen = [each.value for each in mechanism] if mechanism else list(known)
        delete_user(client, name, chosen)
    if as_json:
        print_json({"user": name, "removed": chosen})
    else:
        echo(f"{name} cannot log in with {', '.join(chosen)} any more")


def _password(name: str) -> str:
    if sys.stdin.isatty():
        return str(typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True))
    password = sys.stdin.readline().rstrip("\n")
    if not password:
        raise usage("user set: the password is read from standard input, and there was none")
    return password
