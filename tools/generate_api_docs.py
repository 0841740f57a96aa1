"""Writes docs/apis.md, docs/metrics.md and docs/cli.md from the handlers, the metrics and the commands.

python tools/generate_api_docs.py           write them
python tools/generate_api_docs.py --check   say whether they are up to date
"""

from __future__ import annotations

import argparse
import inspect
import sys
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import typer  # noqa: E402
from typer.models import ArgumentInfo, CommandInfo, OptionInfo  # noqa: E402

from ottla.cli import COMMANDS, load  # noqa: E402
from ottla.cli.options.connect import ClusterOptions  # noqa: E402
from ottla.handlers.registry import apis  # noqa: E402
from ottla.protocol.api import APIS  # noqa: E402
from ottla.protocol.releases import release_names  # noqa: E402
from ottla.protocol.schema import format_versions  # noqa: E402
from ottla.server.metrics import METRICS  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

WRITTEN = "Written by `tools/generate_api_docs.py`; do not edit."

# What a reader of the table should know beyond its numbers.
NOTES = {
    0: "0 to 2 are advertised and refused, as in Kafka: old librdkafka clients require them",
    1: "followers share their leader's log, so no broker fetches from another",
    34: "a node has logs of the partitions that it leads; moves between directories run in the background",
    45: "the new replicas are in sync at once, because they share the leader's log",
    55: "a quorum of one: the first node",
    80: "checked as Kafka does; a quorum of one takes no second voter (REQUEST_TIMED_OUT)",
    81: "checked as Kafka does; the last voter stays (VOTER_NOT_FOUND)",
    71: "Kafka has it only with a telemetry receiver configured",
    72: "Kafka has it only with a telemetry receiver configured",
}

# Options of every command that connects to a cluster, listed once.
COMMON = {"bootstrap", "properties", "properties_file", "timeout"}


def api_page() -> str:
    """docs/apis.md."""
    served = apis()
    for_brokers = [api for api in APIS if "broker" in api.listeners]
    missing = [api for api in for_brokers if api.key not in served]
    out = [
        "# The APIs that ottla serves\n",
        f"{WRITTEN} `ottla cluster apis` shows the APIs of a running broker.\n",
        f"{len(served)} of the {len(for_brokers)} APIs that a broker of Apache Kafka 4.3 can have; the others are "
        "not advertised. The column `needs` lists the ACL operations that an authorizer requires.\n",
        "| key | API | Kafka 4.3 | ottla | needs | note |",
        "|---:|---|---|---|---|---|",
    ]
    for api in for_brokers:
        ours = served.get(api.key)
        theirs = format_versions(range(api.min_version, api.max_stable_version + 1))
        shown = "not yet" if ours is None else format_versions(ours.versions)
        needs = "" if ours is None else str(ours.acl)
        out.append(f"| {api.key} | {api.name} | {theirs} | {shown} | {needs} | {NOTES.get(api.key, '')} |")
    out += ["", "## Not supported yet\n"]
    out += [f"- {api.name} ({api.key}) {NOTES.get(api.key, '')}".rstrip() for api in missing] or ["Nothing is missing."]
    behind = [
        f"- {api.name} ({api.key}): Kafka has {format_versions(range(api.min_version, api.max_stable_version + 1))}, "
        f"ottla {format_versions(served[api.key].versions)}"
        for api in for_brokers
        if api.key in served and served[api.key].versions != range(api.min_version, api.max_stable_version + 1)
    ]
    if behind:
        out += ["", "In other versions than Kafka:\n", *behind]
    controllers = ", ".join(f"{api.name} ({api.key})" for api in APIS if "broker" not in api.listeners)
    out += [
        "",
        "## Not for clients\n",
        f"Between brokers and controllers only, and on no listener of a broker: {controllers}.\n",
        "## Older Kafkas\n",
        "`ottla serve --as-version X.Y` advertises and accepts only the versions of that release: "
        f"{', '.join(release_names())}.\n",
        "Only the newest version of each API, and the features, are that release's. Everything else is as in 4.3: the "
        "oldest versions (Kafka 4.0 removed ListOffsets v0 and others, KIP-896), coordinator and metadata records, "
        "config defaults and error codes.\n",
    ]
    return "\n".join(out)


def metrics_page() -> str:
    """docs/metrics.md."""
    out = [
        "# Metrics\n",
        f"{WRITTEN}\n",
        "`ottla serve --metrics 9464` shows these at `http://127.0.0.1:9464/metrics` for Prometheus (`--metrics "
        "0.0.0.0:9464` also serves other machines, `0` takes a free port; requires `pip install 'ottla[metrics]'`). "
        "Requests must name a loopback host, the bound address or a name given with `--http-host`. Without "
        "`--metrics` nothing is counted. `process_*` (memory, CPU, open files) are included.\n",
        "In a test:\n",
        "```python",
        "import urllib.request",
        "",
        "from ottla.testing import Cluster",
        "",
        "with Cluster(topics=['orders'], metrics=0) as cluster:",
        "    page = urllib.request.urlopen(cluster.metrics_url).read().decode()",
        "    assert 'ottla_topics' in page",
        "```\n",
        "| metric | kind | labels | meaning |",
        "|---|---|---|---|",
    ]
    for name, metric in METRICS.items():
        out.append(f"| `{name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.help} |")
    out += [
        "",
        "Example queries:\n",
        "```promql",
        "sum by (api) (rate(ottla_requests_total[1m]))                                        # requests per second",
        'histogram_quantile(0.99, sum by (le) (rate(ottla_request_seconds_bucket{api="Produce"}[5m])))',
        "sum by (topic) (rate(ottla_partition_high_watermark[1m]))                            # records per second",
        "```",
        "",
    ]
    return "\n".join(out)


def cli_page() -> str:
    """docs/cli.md."""
    out = [
        "# The command line\n",
        f"{WRITTEN} `ottla COMMAND --help` prints the same.\n",
        "Every command prints JSON with `--json`, one object per line. A closed pipe (`| head`) is not an error. "
        "Commands that connect to a cluster work with any Kafka; they share these options:\n",
        "| | |",
        "|---|---|",
        *_cluster_options(),
        "",
        "| exit code | meaning |",
        "|---:|---|",
        "| 0 | done |",
        "| 1 | failed, or refused by the cluster; the reason is on standard error. `analyze`, `log verify`: findings |",
        "| 2 | wrong usage. `analyze`: or the input cannot answer |",
        "| 3 | no broker can be reached |",
        "| 4 | the topic, group or transactional id does not exist |",
        "| 5 | `group lag --fail-above`: the lag is higher |",
        "| 130 | interrupted with Ctrl-C. `serve`, `tap`, `consume` and `pipeline run`, which run until Ctrl-C: 0 |",
        "",
    ]
    for word in sorted(COMMANDS):
        for name, command in _commands(load(word), "ottla"):
            out += _command(name, command)
    return "\n".join(out)


def _cluster_options() -> list[str]:
    """The rows of the options that every command of a cluster has."""
    hints = get_type_hints(ClusterOptions, include_extras=True)
    rows = []
    for field in fields(ClusterOptions):
        kind, info = get_args(hints[field.name])[:2]
        default = field.default if info.show_default is not False else None
        rows.append(f"| {_flags(field.name, kind, info, default)} | {_text(info.help)}{_default(info, default)} |")
    return rows


def _commands(app: typer.Typer, name: str) -> Iterator[tuple[str, CommandInfo]]:
    """Every command that does something, by its whole name."""
    commands: list[tuple[str, CommandInfo | typer.Typer]] = []
    for command in app.registered_commands:
        assert command.callback is not None
        commands.append((command.name or command.callback.__name__, command))
    for group in app.registered_groups:
        assert group.typer_instance is not None
        commands.append((str(group.name or group.typer_instance.info.name), group.typer_instance))
    for word, target in sorted(commands, key=lambda pair: pair[0]):
        if isinstance(target, typer.Typer):
            yield from _commands(target, f"{name} {word}")
        else:
            yield f"{name} {word}", target


def _command(name: str, command: CommandInfo) -> list[str]:
    callback = command.callback
    assert callback is not None
    hints = get_type_hints(callback, include_extras=True)
    arguments, options = [], []
    for parameter in inspect.signature(callback).parameters.values():
        hint = hints[parameter.name]
        (info,) = [arg for arg in get_args(hint)[1:] if isinstance(arg, ArgumentInfo | OptionInfo)]
        entry = (parameter.name, get_args(hint)[0], info, parameter.default)
        if parameter.name not in COMMON:
            (arguments if isinstance(info, ArgumentInfo) else options).append(entry)
    words = [
        str(info.metavar or word.upper()) if default is inspect.Parameter.empty or info.metavar else f"[{word.upper()}]"
        for word, _, info, default in arguments
    ]
    help_text = inspect.cleandoc(command.help or callback.__doc__ or "")
    out = [f"## {name}\n", f"`{' '.join([name, *words, '[OPTIONS]'])}`\n", help_text.split("\n\n")[0], ""]
    rows = [f"| `{info.metavar or word.upper()}` | {_text(info.help)} |" for word, _, info, _ in arguments]
    rows += [f"| {_flags(*entry)} | {_text(entry[2].help)}{_default(entry[2], entry[3])} |" for entry in options]
    if rows:
        out += ["| | |", "|---|---|", *rows, ""]
    examples = [line.strip() for line in (command.epilog or "").splitlines()]
    return [*out, "```sh", *examples[2:], "```", ""]


def _flags(name: str, kind: Any, info: Any, default: object) -> str:
    words = [info.default, *(info.param_decls or ())]  # in Annotated the first flag stands where a default could
    flags = [flag for word in words if isinstance(word, str) for flag in word.split("/")]
    flags = flags or ["--" + name.replace("_", "-")]
    shown = ", ".join(f"`{flag}`" for flag in flags)
    return shown if kind is bool else f"{shown} `{info.metavar or _type_name(kind)}`"


def _type_name(kind: Any) -> str:
    kinds = [arg for arg in (get_args(kind) or (kind,)) if arg is not type(None)]
    inner = get_args(kinds[0])
    shown = inner[0] if inner else kinds[0]
    if isinstance(shown, type) and issubclass(shown, Enum):
        return "/".join(str(choice.value) for choice in shown)
    return {str: "TEXT", int: "N", float: "NUMBER"}.get(shown, shown.__name__.upper())


def _default(info: Any, default: Any) -> str:
    if isinstance(info.show_default, str):
        return f" Default: `{info.show_default}`."
    variable = f" or the environment variable `{info.envvar}`" if getattr(info, "envvar", None) else ""
    if default in (None, "", False, inspect.Parameter.empty):
        return ""
    return f" Default: `{default.value if isinstance(default, Enum) else default}`{variable}."


def _text(help_text: str | None) -> str:
    return " ".join((help_text or "").split()).replace("|", "\\|")


PAGES = {"apis.md": api_page, "metrics.md": metrics_page, "cli.md": cli_page}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something would change")
    options = parser.parse_args()
    stale = []
    for name, page in PAGES.items():
        path, text = ROOT / "docs" / name, page()
        if (path.read_text() if path.exists() else "") != text:
            stale.append(name)
            if not options.check:
                path.write_text(text)
    if options.check:
        print(f"run tools/generate_api_docs.py: {', '.join(stale)}" if stale else "up to date")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
