"""Tab completion of topics and groups: asks the cluster, and completes nothing if it does not answer soon."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ottla.client import Client

_SECONDS = 2.0


def complete_topics(ctx: Any, args: list[str], incomplete: str) -> list[str]:
    """Return the topics that begin with what is typed."""
    return _complete(ctx, incomplete, lambda client: (topic.name for topic in client.topics() if not topic.internal))


def complete_groups(ctx: Any, args: list[str], incomplete: str) -> list[str]:
    """Return the groups that begin with what is typed."""
    from ottla.client.groups import list_groups

    return _complete(ctx, incomplete, lambda client: (group.group for group in list_groups(client)))


def _complete(ctx: Any, incomplete: str, names: Callable[[Client], Iterable[str]]) -> list[str]:
    from ottla.cli.options.connect import LOCAL, client_properties
    from ottla.client import Client
    from ottla.client.auth import security_from_properties

    typed = ctx.params
    bootstrap = typed.get("bootstrap") or os.environ.get("OTTLA_BOOTSTRAP") or LOCAL
    errors, sys.stderr = sys.stderr, open(os.devnull, "w")  # noqa: SIM115 - a warning would garble the prompt
    try:
        security = security_from_properties(client_properties(typed.get("properties"), typed.get("properties_file")))
        with Client(bootstrap, timeout=_SECONDS, security=security) as client:
            return sorted(name for name in names(client) if name.startswith(incomplete))
    except Exception:
        return []
    finally:
        sys.stderr.close()
        sys.stderr = errors
