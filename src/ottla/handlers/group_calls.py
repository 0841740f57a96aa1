"""What the handlers of group APIs share: who asks, and what to do with an answer that may come later."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ottla.cluster.acls import AclOperation
from ottla.groups.environment import RequestContext
from ottla.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ottla.broker.session import Call

R = TypeVar("R")
S = TypeVar("S")


def request_context(call: Call) -> RequestContext:
    """Who sent a request, as the groups write it down."""
    context = RequestContext(call.version, call.client_id or "", f"/{call.session.host}")
    if call.broker.cluster.authorizer is None:
        return context
    return replace(
        context, describable=lambda names: [each for each in names if call.may_topic(AclOperation.DESCRIBE, each)]
    )


def then(answer: R | Pending[R], change: Callable[[R], S]) -> S | Pending[S]:
    """What `change` makes of an answer, now or when it comes."""
    return answer.map(change) if isinstance(answer, Pending) else change(answer)


def sort_out(things: Iterable[R], passes: Callable[[R], bool]) -> tuple[list[R], list[R]]:
    """What passes a check and what does not, each looked at once: there may be very many."""
    right: list[R] = []
    wrong: list[R] = []
    for each in things:
        (right if passes(each) else wrong).append(each)
    return right, wrong
