"""Writes docs/protocol-coverage.md from the declared messages.

python tools/protocol_coverage.py           write it
python tools/protocol_coverage.py --check   say whether it is up to date
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from ottla.handlers.registry import apis  # noqa: E402
from ottla.protocol import record_schemas  # noqa: E402
from ottla.protocol.api import APIS, request_class, response_class  # noqa: E402
from ottla.protocol.error_codes import ErrorCode  # noqa: E402
from ottla.protocol.messages.header import RequestHeader, ResponseHeader  # noqa: E402
from ottla.protocol.schema import Message, format_versions  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCUMENT = ROOT / "docs" / "protocol-coverage.md"

HEAD = """# Messages that ottla reads and writes

Written by `tools/protocol_coverage.py` from the declarations in `src/ottla/protocol` and the handlers; do not edit.
"""


def flexible(message: type[Message]) -> str:
    schema = message.__schema__
    versions = [version for version in schema.versions if version in schema.flexible]
    return f"{versions[0]}+" if versions else "never"


def versions(message: type[Message]) -> str:
    return format_versions(message.__schema__.versions)


def record_modules() -> Iterator[tuple[str, list[type[Message]]]]:
    for module in iter_modules(record_schemas.__path__):
        loaded = import_module(f"{record_schemas.__name__}.{module.name}")
        messages = [
            value
            for value in vars(loaded).values()
            if isinstance(value, type) and issubclass(value, Message) and value is not Message
        ]
        yield module.name, messages


def text() -> str:
    """The whole document."""
    count = sum(len(request_class(api.key).__schema__.versions) for api in APIS)
    out = [
        HEAD,
        f"## {len(APIS)} APIs, {count} versions, request and response of each\n",
        "`listeners` are those that serve it in Apache Kafka; a version in brackets is not stable yet. `served` are "
        "the versions that ottla serves, `needs` the ACL operations that they require (see security.md).\n",
        "| key | API | versions | flexible | listeners | served | needs |",
        "|---:|---|---|---|---|---|---|",
    ]
    for api in APIS:
        request, response = request_class(api.key), response_class(api.key)
        assert versions(request) == versions(response)
        shown = format_versions(range(api.min_version, api.max_stable_version + 1))
        if api.max_stable_version < api.max_version:
            shown += f" [{api.max_version}]"
        listeners = ", ".join(api.listeners)
        served = apis().get(api.key)
        broker = "| |" if served is None else f"{format_versions(served.versions)} | {served.acl} |"
        out.append(f"| {api.key} | {api.name} | {shown} | {flexible(request)} | {listeners} | {broker}")
    out += ["", "| header | versions | flexible |", "|---|---|---|"]
    for header in (RequestHeader, ResponseHeader):
        out.append(f"| {header.__name__} | {versions(header)} | {flexible(header)} |")
    out += ["", "## Records and files\n", "| module | message | type | versions | flexible |", "|---|---|---:|---|---|"]
    for name, messages in record_modules():
        for message in messages:
            key = message.__schema__.api_key
            kind = "" if key is None else str(key)
            out.append(f"| {name} | {message.__name__} | {kind} | {versions(message)} | {flexible(message)} |")
    out += [
        "",
        f"## {len(ErrorCode)} error codes\n",
        "| code | name | a client may retry |",
        "|---:|---|---|",
        *(f"| {code.value} | {code.name} | {'yes' if code.retriable else ''} |" for code in ErrorCode),
        "",
    ]
    return "\n".join(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something would change")
    options = parser.parse_args()
    current = DOCUMENT.read_text() if DOCUMENT.exists() else ""
    if options.check:
        print("up to date" if current == text() else "run tools/protocol_coverage.py")
        return int(current != text())
    DOCUMENT.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
