"""A cluster with data, its console, and a browser: Debian's chromium, driven by Playwright."""

import contextlib
import re
import shutil

import httpx
import pytest

from ottla.client import Client
from ottla.client.groups import alter_share_offsets, commit
from ottla.client.producer import Producer
from ottla.console.options import parse_console_options
from ottla.console.server import ConsoleServer
from ottla.testing import Cluster

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "<img src=x onerror=alert(1)>\"'`${7*7}{{7*7}}\u202e\x1b[31m"


@contextlib.contextmanager
def filled_cluster():
    """Start three brokers with records, groups, transactions and hostile names."""
    topics = {"orders": {"partitions": 3, "replication_factor": 3}, "payments": 2, "empty": 1}
    with Cluster(brokers=3, topics=topics, registry=True) as started:
        with Client(started.bootstrap, client_id=HOSTILE) as client:
            fill(client)
        yield started


@pytest.fixture(scope="session")
def cluster():
    """A cluster whose topic orders no test changes."""
    with filled_cluster() as started:
        yield started


def fill(client):
    producer = Producer(client, compression="gzip")
    for number in range(60):
        value = b'{"order": %d, "customer": {"name": "%s"}, "items": [{"sku": "B-%d"}]}'
        name = b"ada" if number % 3 else b"grace"
        producer.send("orders", b"key-%d" % number, value % (number, name, number), [("source", b"web")], number % 3)
    producer.send("orders", HOSTILE.encode(), HOSTILE.encode(), [(HOSTILE, HOSTILE.encode())], 0)
    producer.send("orders", None, b"\x00\xff\x01", (), 1)
    producer.send("orders", b"tombstone", None, (), 2)
    producer.flush()
    committed = Producer(client, transactional_id="payer")
    committed.initialize()
    committed.send("payments", b"a", b"1")
    committed.commit()
    hostile = Producer(client, transactional_id=HOSTILE, transaction_timeout_ms=600_000)
    hostile.initialize()
    hostile.send("payments", b"b", b"open")
    hostile.flush()
    alter_share_offsets(client, "sharing", {("orders", 0): 2})
    commit(client, "billing", {("orders", 0): 5, ("orders", 1): 7, ("orders", 2): 20})
    commit(client, HOSTILE, {("orders", 0): 1})


@pytest.fixture(scope="session")
def serve():
    """Return a function that starts a console; consoles stop at the end."""
    started = []

    def start(bootstrap, **options):
        timeout = options.pop("timeout", 10)
        parsed = parse_console_options("--listen", "0", no_auth=True, environment={}, **options)
        server = ConsoleServer(lambda: Client(bootstrap, timeout=timeout), parsed, bootstrap=bootstrap)
        started.append(server.start())
        return server

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="session")
def console(cluster, serve):
    return serve(cluster.bootstrap, registry=cluster.registry_url)


class Web:
    """A client of the console without a browser: pages, and changes with the CSRF token."""

    def __init__(self, address, login=None):
        self.http = httpx.Client(base_url=address, timeout=60)
        if login is not None:
            self.http.get(login)
        self.csrf = re.search(r'X-CSRF-Token": "(\w+)"', self.http.get("/").text)[1]

    def get(self, path, **params):
        return self.http.get(path, params=params or None)

    def post(self, path, **form):
        headers = {"X-CSRF-Token": self.csrf, "Origin": str(self.http.base_url).rstrip("/"), "HX-Request": "true"}
        return self.http.post(path, data=form, headers=headers)

    def events(self, path, until, **params):
        """Return (event, data) of a stream until an event of this name."""
        received = []
        with self.http.stream("GET", path, params=params) as stream:
            name, data = "", []
            for line in stream.iter_lines():
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    data.append(line[6:])
                elif not line and name:
                    received.append((name, "\n".join(data)))
                    if name == until:
                        break
                    name, data = "", []
        return received


@pytest.fixture(scope="session")
def web(console):
    return Web(console.address)


@pytest.fixture(scope="module")
def browser():
    """Chromium of the system; tests are skipped where there is none.

    Not for the session: while Playwright is open, its event loop runs in this thread and no other can.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="browser tests need: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("browser tests need a browser (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def tab(browser, console):
    """A page of the console; errors of scripts and of the Content-Security-Policy fail the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 850}, base_url=console.address)
    context.set_default_timeout(60_000)
    page = context.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if "Content Security" in message.text else None)
    page.on("dialog", lambda dialog: dialog.accept())
    yield page
    context.close()
    assert problems == []
