"""Who may use the console: token, login, CSRF, Host, Origin, read-only, headers."""

import re

import httpx
import pytest

from ottla.client import Client
from ottla.console.options import parse_console_options
from ottla.console.server import ConsoleServer
from ottla.testing import Cluster


@pytest.fixture(scope="module")
def cluster():
    with Cluster(topics=["orders:3"]) as started:
        yield started


def serve(cluster, **options):
    parsed = parse_console_options("--listen", "0", environment=options.pop("environment", {}), **options)
    return ConsoleServer(lambda: Client(cluster.bootstrap, timeout=10), parsed, bootstrap=cluster.bootstrap)


def test_page_without_token_is_refused_and_shows_nothing(cluster):
    with serve(cluster) as console:
        answer = httpx.get(console.address + "/topics")
    assert answer.status_code == 401
    assert "token" in answer.text
    assert "orders" not in answer.text
    assert cluster.bootstrap not in answer.text


def test_token_of_printed_address_becomes_cookie(cluster):
    with serve(cluster) as console, httpx.Client(follow_redirects=False) as browser:
        answer = browser.get(console.url)
        assert answer.status_code == 303
        assert answer.headers["location"] == "/"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert browser.get(console.address + "/").status_code == 200


def test_wrong_token_is_refused(cluster):
    with serve(cluster, environment={"OTTLA_CONSOLE_TOKEN": "correct-token"}) as console:
        assert console.url.endswith("/?token=correct-token")
        assert httpx.get(console.address + "/?token=wrong-token").status_code == 401
        assert httpx.get(console.address + "/", cookies={"ottla_console": "correct-token"}).status_code == 401


def test_redirect_after_login_stays_on_this_host(cluster):
    with serve(cluster, environment={"OTTLA_CONSOLE_TOKEN": "correct-token"}) as console:
        answer = httpx.get(console.address + "//evil.example/?token=correct-token&x=1")
        assert answer.headers["location"] == "/evil.example/?x=1"


def test_basic_login_replaces_token(cluster):
    with serve(cluster, user="ada", environment={"OTTLA_CONSOLE_PASSWORD": "pass:word"}) as console:
        assert console.url == console.address + "/"
        refused = httpx.get(console.url)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Basic")
        assert httpx.get(console.url, auth=("ada", "pass:word")).status_code == 200
        assert httpx.get(console.url, auth=("ada", "pass")).status_code == 401


def test_foreign_host_and_origin_are_refused(cluster):
    with serve(cluster, no_auth=True) as console:
        assert httpx.get(console.address, headers={"Host": "evil.example"}).status_code == 403
        assert httpx.post(console.address, headers={"Origin": "http://evil.example"}).status_code == 403


def test_change_requires_csrf_token(cluster):
    with serve(cluster, no_auth=True) as console:
        headers = {"Origin": console.address, "HX-Request": "true"}
        form = {"name": "made-without-token", "partitions": "1"}
        answer = httpx.post(console.address + "/new-topic", data=form, headers=headers)
        assert answer.status_code == 403
        assert "Reload" in answer.text
        token = re.search(r'X-CSRF-Token": "(\w+)"', httpx.get(console.address).text)[1]
        wrong = {**headers, "X-CSRF-Token": token[::-1]}
        assert httpx.post(console.address + "/new-topic", data=form, headers=wrong).status_code == 403
    assert "made-without-token" not in list(cluster.topics())


def test_read_only_console_refuses_changes_and_hides_buttons(cluster):
    with serve(cluster, no_auth=True, read_only=True) as console:
        page = httpx.get(console.address)
        token = re.search(r'X-CSRF-Token": "(\w+)"', page.text)[1]
        answer = httpx.post(
            console.address + "/new-topic",
            data={"name": "x"},
            headers={"Origin": console.address, "X-CSRF-Token": token},
        )
        assert answer.status_code == 403
        assert "read-only" in answer.text
        assert "read-only" in page.text


def test_pages_have_strict_policy(cluster):
    with serve(cluster, no_auth=True) as console:
        answer = httpx.get(console.address)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert " style=" not in answer.text
    assert not re.search(r"<script(?! src=)", answer.text)


def test_unknown_address_is_page_of_the_console(cluster):
    with serve(cluster, no_auth=True) as console:
        answer = httpx.get(console.address + "/nowhere/<b>")
    assert answer.status_code == 404
    assert "<b>" not in answer.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": "x"}, "write a port"),
        ({"user": "ada"}, "OTTLA_CONSOLE_PASSWORD"),
        ({"user": "ada", "no_auth": True}, "cannot be used together"),
        ({"registry": "ftp://x"}, "URL of a registry"),
        ({"environment": {"OTTLA_CONSOLE_TOKEN": "short"}}, "eight or more"),
    ],
)
def test_bad_options_are_named(options, message):
    arguments = {"text": "0", "environment": {}, **options}
    with pytest.raises(ValueError, match=message):
        parse_console_options("--listen", arguments.pop("text"), **arguments)
