"""Security: ACLs and the decision about a request, SCRAM users, quotas, delegation tokens."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from ottla.client.access import alter_quotas, create_acls, delete_user, list_quotas, list_users, set_password
from ottla.client.tokens import create_token, list_tokens
from ottla.cluster.security.acls import (
    CLUSTER_RESOURCE_NAME,
    Acl,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from ottla.console.data.security import all_acls, authorizer_config, decide, expire_token_by_id, remove_acl
from ottla.console.forms import Form
from ottla.console.page import FieldError, Page, parse_number
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security.authorizer import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response

    from ottla.console.page import Call

page = Page("security", "Security", section="Clients", key="s")
RESOURCES: Final = tuple(kind.name.lower() for kind in OPERATIONS)
ALL_OPERATIONS: Final = tuple(
    operation.name.lower() for operation in AclOperation if operation not in (AclOperation.UNKNOWN, AclOperation.ANY)
)
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
QUOTAS: Final = (
    ("producer_byte_rate", "bytes/s written"),
    ("consumer_byte_rate", "bytes/s read"),
    ("request_percentage", "% of one thread"),
    ("controller_mutation_rate", "partitions/s changed"),
    ("connection_creation_rate", "connections/s, for an IP address"),
)
ENTITIES: Final = (("user", "user"), ("client-id", "client id"), ("ip", "IP address"))
NOT_CONFIGURED: Final = frozenset({ErrorCode.SECURITY_DISABLED, ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED})
PAGE_SIZE: Final = 200


# ACLs


@page.get("/security")
async def acls(call: Call) -> Response:
    """Show ACLs, and answer whether a principal may do something."""
    values: dict[str, Any] = {"disabled": "", "rows": [], "total": 0, "answer": None, "errors": {}}
    config = await call.run(authorizer_config)
    rows = []
    try:
        rows = await call.run(all_acls)
    except KafkaError as error:
        if error.code not in NOT_CONFIGURED:
            raise
        values["disabled"] = "The brokers have no authorizer: everyone may do everything, and there are no ACLs."
    words = call.query.get("q", "").lower().split()
    start = call.number("start", 0)
    shown = [row for row in rows if all(word in _text(row).lower() for word in words)]
    values |= {"rows": shown[start : start + PAGE_SIZE], "total": len(shown), "start": start}
    if call.query.get("principal"):
        try:
            principal, host, operation, resource, name = _question(call.query)
            values["answer"] = decide([row.acl for row in rows], config, principal, host, operation, resource, name)
        except FieldError as error:
            values["errors"] = {error.name: error.message}
    values |= {"resources": RESOURCES, "operations": ALL_OPERATIONS, "size": PAGE_SIZE}
    return call.render("security_acls.html", tab="acls", config=config, **values)


def _text(row: Any) -> str:
    return f"{row.resource} {row.acl.resource_name} {row.acl.principal} {row.operation} {row.permission} {row.acl.host}"


def _question(values: Mapping[str, str]) -> tuple[str, str, AclOperation, ResourceType, str]:
    principal = _principal("principal", values.get("principal", ""))
    resource = _resource(values)
    operation = _operation(values)
    if operation not in OPERATIONS[resource]:
        allowed = ", ".join(entry.name.lower() for entry in OPERATIONS[resource])
        raise FieldError("operation", f"a {resource.name.lower()} has the operations {allowed}")
    return principal, values.get("host", "").strip() or "127.0.0.1", operation, resource, _name(values, resource)


def _principal(field: str, text: str) -> str:
    text = text.strip()
    if not text:
        raise FieldError(field, "write a principal, such as User:ada")
    return text if ":" in text else f"User:{text}"


def _resource(values: Mapping[str, str]) -> ResourceType:
    if values.get("resource", "") not in RESOURCES:
        raise FieldError("resource", "there is no such resource")
    return ResourceType[values["resource"].upper()]


def _operation(values: Mapping[str, str]) -> AclOperation:
    if values.get("operation", "") not in ALL_OPERATIONS:
        raise FieldError("operation", "there is no such operation")
    return AclOperation[values["operation"].upper()]


def _name(values: Mapping[str, str], resource: ResourceType) -> str:
    name = values.get("name", "").strip()
    if resource is ResourceType.CLUSTER:
        return CLUSTER_RESOURCE_NAME
    if not name:
        raise FieldError("name", "write a name")
    return name


@page.get("/security/acls/new")
async def new_acl(call: Call) -> Response:
    """Show the form of a new ACL."""
    form = {"resource": "topic", "pattern": "literal", "operation": "read", "permission": "allow", "host": "*"}
    return call.fragment("security_forms.html", "acl", form=form, resources=RESOURCES, operations=ALL_OPERATIONS)


@page.post("/security/acls/new")
async def create_acl(call: Call) -> Response:
    """Create an ACL."""
    form = Form(await call.form())
    with form.checked():
        acl = _acl(form.values)
        await call.run(create_acls, [acl])
        return call.done("/security", "The ACL was created.")
    return form.again(call, "security_forms.html", "acl", resources=RESOURCES, operations=ALL_OPERATIONS)


def _acl(values: Mapping[str, str]) -> Acl:
    resource = _resource(values)
    pattern, permission = values.get("pattern", ""), values.get("permission", "")
    if pattern not in ("literal", "prefixed"):
        raise FieldError("pattern", "a pattern is literal or prefixed")
    if permission not in ("allow", "deny"):
        raise FieldError("permission", "a rule allows or denies")
    return Acl(
        resource,
        _name(values, resource),
        PatternType[pattern.upper()],
        _principal("principal", values.get("principal", "")),
        values.get("host", "").strip() or "*",
        _operation(values),
        AclPermission[permission.upper()],
    )


@page.post("/security/acls/delete")
async def delete_acl(call: Call) -> Response:
    """Delete one ACL."""
    form = Form(await call.form())
    with form.checked():
        count = await call.run(remove_acl, _acl(form.values))
        return call.done("/security", "The ACL was deleted." if count else "The ACL did not exist any more.")
    return form.again(call, "security_forms.html", "failed")


# Users


@page.get("/security/users")
async def users(call: Call) -> Response:
    """Show SCRAM users."""
    return call.render("security_users.html", tab="users", users=await call.run(list_users))


@page.get("/security/users/new")
async def new_user(call: Call) -> Response:
    """Show the form of a user."""
    form = {"name": call.query.get("name", ""), "mechanism": "SCRAM-SHA-512", "iterations": "8192"}
    return call.fragment("security_forms.html", "user", form=form, mechanisms=MECHANISMS)


@page.post("/security/users/new")
async def save_user(call: Call) -> Response:
    """Set the password of a user."""
    form = Form(await call.form())
    values = form.values
    with form.checked():
        name, password = values.get("name", "").strip(), values.pop("password", "")
        if not name:
            raise FieldError("name", "write a name")
        if not password:
            raise FieldError("password", "write a password")
        if values.get("mechanism") not in MECHANISMS:
            raise FieldError("mechanism", "there is no such mechanism")
        iterations = parse_number("iterations", values.get("iterations", ""), least=4096, most=16384)
        await call.run(set_password, name, password, values["mechanism"], iterations)
        return call.done("/security/users", f"The password of {name} was set.")
    return form.again(call, "security_forms.html", "user", mechanisms=MECHANISMS)


@page.post("/security/users/delete")
async def remove_user(call: Call) -> Response:
    """Delete a credential of a user."""
    form = Form(await call.form())
    with form.checked():
        name = form.values.get("name", "")
        await call.run(delete_user, name, [form.values.get("mechanism", "")])
        return call.done("/security/users", f"A credential of {name} was deleted.")
    return form.again(call, "security_forms.html", "failed")


# Quotas


@page.get("/security/quotas")
async def quotas(call: Call) -> Response:
    """Show client quotas."""
    listed = await call.run(list_quotas)
    return call.render("security_quotas.html", tab="quotas", quotas=sorted(listed.items(), key=str), units=dict(QUOTAS))


@page.get("/security/quotas/new")
async def new_quota(call: Call) -> Response:
    """Show the form of a quota."""
    return call.fragment("security_forms.html", "quota", form={"entity": "user"}, kinds=QUOTAS, entities=ENTITIES)


@page.post("/security/quotas/new")
async def save_quota(call: Call) -> Response:
    """Set or remove a quota."""
    form = Form(await call.form())
    values = form.values
    with form.checked("value"):
        if values.get("entity") not in dict(ENTITIES):
            raise FieldError("entity", "there is no such entity")
        if values.get("quota") not in dict(QUOTAS):
            raise FieldError("quota", "there is no such quota")
        entity: dict[str, str | None] = {values["entity"]: values.get("name") or None}
        if values.get("client") and values["entity"] == "user":
            entity["client-id"] = values["client"]
        value: float | None = None
        if values.get("remove") != "1":
            try:
                value = float(values.get("value", ""))
            except ValueError:
                raise FieldError("value", "write a number") from None
        await call.run(alter_quotas, entity, {values["quota"]: value})
        return call.done("/security/quotas", "The quota was removed." if value is None else "The quota was set.")
    return form.again(call, "security_forms.html", "quota", kinds=QUOTAS, entities=ENTITIES)


@page.post("/security/quotas/delete")
async def remove_quota(call: Call) -> Response:
    """Remove one quota of an entity."""
    form = Form(await call.form())
    values = form.values
    with form.checked():
        entity = {
            kind: (None if values.get(f"default-{kind}") else values[f"entity-{kind}"])
            for kind in ("user", "client-id", "ip")
            if f"entity-{kind}" in values
        }
        await call.run(alter_quotas, entity, {values.get("quota", ""): None})
        return call.done("/security/quotas", "The quota was removed.")
    return form.again(call, "security_forms.html", "failed")


# Delegation tokens


@page.get("/security/tokens")
async def tokens(call: Call) -> Response:
    """Show delegation tokens; HMACs, which are passwords, are never shown."""
    disabled, rows = "", []
    try:
        rows = await call.run(list_tokens)
    except KafkaError as error:
        if error.code not in (*NOT_CONFIGURED, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED):
            raise
        disabled = {
            ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "The brokers have no delegation.token.secret.key.",
            ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "Tokens are for SASL and TLS connections, and this console "
            "is connected without a login.",
        }.get(ErrorCode(error.code), str(error))
    return call.render("security_tokens.html", tab="tokens", tokens=rows, disabled=disabled)


@page.get("/security/tokens/new")
async def new_token(call: Call) -> Response:
    """Show the form of a token."""
    return call.fragment("security_forms.html", "token", form={}, made=None)


@page.post("/security/tokens/new")
async def save_token(call: Call) -> Response:
    """Create a token for the console's principal; its HMAC is shown once."""
    form = Form(await call.form())
    with form.checked():
        hours = parse_number("hours", form.values.get("hours") or "24", least=1, most=24 * 365)
        renewers = form.values.get("renewers", "").split()
        token_id, hmac = await call.run(create_token, renewers, hours * 3_600_000)
        made = token_id, base64.b64encode(hmac).decode()
        return call.fragment("security_forms.html", "token", form=form.values, made=made)
    return form.again(call, "security_forms.html", "token", made=None)


@page.post("/security/tokens/delete")
async def remove_token(call: Call) -> Response:
    """Expire a token."""
    form = Form(await call.form())
    with form.checked():
        await call.run(expire_token_by_id, form.values.get("id", ""))
        return call.done("/security/tokens", "The token was expired.")
    return form.again(call, "security_forms.html", "failed")
