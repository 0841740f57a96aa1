"""ACLs of the console: listed, added, removed, decided with their rule; what the console's credentials do not allow."""

import html

import pytest

from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.console.data.security import AuthorizerConfig, decide
from ottla.testing import Cluster
from ottla.testing.security import User, allow, deny
from tests.console.conftest import Web

CONFIG = AuthorizerConfig(True, frozenset({"User:root"}), False)
RULES = [
    allow("User:ada", "write", topic="orders"),
    allow("User:ada", "read", topic="pay", prefixed=True),
    deny("User:*", "read", topic="payroll"),
    allow("User:*", "all", group="*"),
]


@pytest.mark.parametrize(
    ("principal", "operation", "kind", "name", "allowed", "reason"),
    [
        ("User:ada", "WRITE", "TOPIC", "orders", True, "This rule allows it."),
        ("User:ada", "DESCRIBE", "TOPIC", "orders", True, "write includes describe"),
        ("User:ada", "READ", "TOPIC", "orders", False, "No rule allows it."),
        ("User:ada", "READ", "TOPIC", "payments", True, "This rule allows it."),
        ("User:ada", "READ", "TOPIC", "payroll", False, "DENY wins"),
        ("User:root", "READ", "TOPIC", "payroll", True, "super.users"),
        ("User:eve", "READ", "GROUP", "any", True, "This rule allows it."),
    ],
)
def test_decision_names_its_rule(principal, operation, kind, name, allowed, reason):
    decision = decide(RULES, CONFIG, principal, "127.0.0.1", AclOperation[operation], ResourceType[kind], name)
    assert (decision.allowed, reason in decision.reason) == (allowed, True), decision


@pytest.fixture(scope="module")
def secured():
    users = [User("SCRAM-SHA-256", "ada", "pass-word", [allow("User:ada", "describe", topic="orders")])]
    configs = {"delegation.token.secret.key": "a-secret-of-the-brokers"}
    superusers = [User(None, "root", "root-word")]
    security = {"users": users, "superusers": superusers, "tls": True}
    with Cluster(topics=["orders"], configs=configs, console=True, **security) as started:
        yield started


@pytest.fixture(scope="module")
def root(secured):
    web = Web(secured.console_url.partition("/?")[0], login=secured.console_url)
    assert "User:root" in web.get("/").text
    return web


def test_acl_is_added_decided_and_removed(root):
    question = {"principal": "eve", "operation": "read", "resource": "topic", "name": "orders"}
    assert ">denied<" in root.get("/security", **question).text
    acl = {"principal": "eve", "permission": "allow", "operation": "read", "resource": "topic", "name": "ord"}
    assert root.post("/security/acls/new", **acl, pattern="prefixed", host="*").headers["hx-redirect"] == "/security"
    answer = root.get("/security", **question).text
    assert ">allowed<" in answer
    assert "allow User:eve read on topic ord*" in answer
    assert root.post("/security/acls/delete", **acl, pattern="prefixed", host="*").is_success
    assert ">denied<" in root.get("/security", **question).text
    wrong = root.get("/security", **{**question, "operation": "cluster_action"})
    assert "a topic has the operations" in html.unescape(wrong.text)


def test_token_is_created_shown_once_and_expired(root):
    made = root.post("/security/tokens/new", hours="1")
    assert "HMAC" in made.text
    page = root.get("/security/tokens").text
    secret = made.text.split("<dt>HMAC</dt><dd>")[1].split("<")[0]
    token = made.text.split("<dt>Token id</dt><dd>")[1].split("<")[0]
    assert token in page
    assert secret not in page
    assert root.post("/security/tokens/delete", id=token).is_success
    assert token not in root.get("/security/tokens").text


def test_page_names_what_credentials_do_not_allow(secured):
    from ottla.client import Client
    from ottla.client.auth import security_from_properties
    from ottla.console.options import parse_console_options
    from ottla.console.server import ConsoleServer

    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "ada",
        "sasl.password": "pass-word",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": secured.ca_pem,
    }
    security = security_from_properties(properties, {})
    options = parse_console_options("--listen", "0", no_auth=True, environment={})
    connect = lambda: Client(secured.bootstrap, timeout=10, security=security)  # noqa: E731
    with ConsoleServer(connect, options, bootstrap=secured.bootstrap, principal="User:ada") as console:
        web = Web(console.address)
        assert "orders" in web.get("/topics").text
        cluster_page = web.get("/")
        assert cluster_page.status_code == 200
        assert "CLUSTER_AUTHORIZATION_FAILED" in cluster_page.text
        refused = web.get("/security")
        assert refused.status_code == 403
        assert "User:ada" in refused.text
        created = web.post("/new-topic", name="more")
        assert created.status_code == 422
        assert "AUTHORIZATION_FAILED" in created.text
        assert "pass-word" not in refused.text + cluster_page.text
