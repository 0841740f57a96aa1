"""The console in a browser: all pages, light and dark, narrow, by keyboard, accessible, while the broker is away."""

import re
from pathlib import Path

import pytest

from ottla.testing import Cluster
from tests.console.conftest import HOSTILE, filled_cluster

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
PAGES = [
    "/",
    "/topics",
    "/topics/orders",
    "/topics/orders/records?from=oldest",
    "/topics/orders/configs",
    "/groups",
    "/groups/show?id=billing",
    "/transactions",
    "/security?principal=ada&operation=read&resource=topic&name=orders",
    "/security/quotas",
]

pytestmark = pytest.mark.xdist_group("console browser")


@pytest.fixture(scope="module")
def cluster():
    """A cluster of these tests alone: they write to its topics."""
    with filled_cluster() as started:
        yield started


@pytest.fixture(scope="module")
def console(cluster, serve):
    return serve(cluster.bootstrap, registry=cluster.registry_url)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_have_no_serious_accessibility_violation(browser, console, scheme):
    context = browser.new_context(color_scheme=scheme, base_url=console.address, bypass_csp=True)
    page = context.new_page()
    violations = []
    for path in PAGES if scheme == "light" else [PAGES[3], PAGES[6], PAGES[7]]:  # colours differ, structure does not
        page.goto(path)
        if "records" in path:
            page.locator("tr[data-record]").first.click()
            page.locator(".record").first.wait_for()
        page.evaluate(AXE.read_text())
        result = page.evaluate("axe.run({resultTypes: ['violations']})")
        violations += [
            (path, violation["id"], node["html"][:150], node["failureSummary"][:300])
            for violation in result["violations"]
            if violation["impact"] in ("serious", "critical")
            for node in violation["nodes"]
        ]
    context.close()
    assert violations == []


def test_pages_fit_narrow_screens(browser, console):
    context = browser.new_context(viewport={"width": 380, "height": 800}, base_url=console.address)
    page = context.new_page()
    for path in PAGES:
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 380, path
    context.close()


def test_topic_is_created_with_keyboard_only(tab, cluster):
    tab.goto("/")
    tab.keyboard.press("g")
    tab.keyboard.press("t")
    tab.wait_for_url("**/topics")
    tab.get_by_role("button", name="Create topic").focus()
    tab.keyboard.press("Enter")
    tab.get_by_role("dialog").wait_for()
    tab.keyboard.type("by-keyboard")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/topics/by-keyboard")
    tab.get_by_text("Topic by-keyboard was created.").wait_for()
    assert "by-keyboard" in cluster.topics()
    tab.goto("/topics")
    tab.keyboard.press("j")
    tab.keyboard.press("Enter")
    tab.wait_for_url(re.compile(r"/topics/[\w.-]+$"))
    tab.keyboard.press("?")
    tab.get_by_role("heading", name="Keyboard shortcuts").wait_for()
    tab.keyboard.press("Escape")


def test_refused_form_shows_error_beside_field(tab):
    tab.goto("/topics")
    tab.get_by_role("button", name="Create topic").click()
    tab.get_by_label("Name").fill("orders")
    tab.get_by_role("dialog").get_by_role("button", name="Create topic").click()
    error = tab.locator("#d-name-error")
    error.wait_for()
    assert "already exists" in error.inner_text()
    assert tab.get_by_label("Name").get_attribute("aria-invalid") == "true"
    tab.keyboard.press("Escape")
    tab.get_by_role("dialog").wait_for(state="hidden")


def test_record_is_searched_opened_and_produced_again(tab):
    tab.goto("/topics/orders/records")
    tab.locator("tr[data-record]").first.wait_for()
    tab.get_by_label("Filter").select_option("path")
    tab.get_by_label("Text, path or expression").fill("$.order = 7")
    tab.get_by_role("button", name="Read").click()
    row = tab.locator("tr[data-record]")
    row.first.wait_for()
    assert row.count() == 1
    row.first.click()
    tab.get_by_role("button", name="Hex").click()
    tab.locator(".hex").wait_for()
    tab.get_by_role("button", name="Produce again").click()
    tab.get_by_role("dialog").get_by_label("Partition").fill("2")
    tab.get_by_role("dialog").get_by_role("button", name="Produce", exact=True).click()
    tab.get_by_text("Written to partition 2").wait_for()


def test_hostile_contents_run_no_script(tab):
    opened = []
    tab.on("dialog", lambda dialog: opened.append(dialog.message))
    for path in ("/topics/orders/records?from=oldest&q=onerror", "/groups", "/transactions"):
        tab.goto(path)
        tab.get_by_text("<img src=x onerror=alert(1)>").first.wait_for()
    tab.goto("/topics/orders/records?from=oldest&q=onerror")
    tab.locator("tr[data-record]").first.click()
    tab.locator(".record").wait_for()
    assert tab.locator("main img").count() == 0
    assert opened == []
    assert HOSTILE[:10] in tab.content().replace("&lt;", "<")


def test_live_page_shows_new_records_without_reload(tab, cluster):
    from ottla.client import Client
    from ottla.client.producer import Producer

    tab.goto("/topics/payments")
    before = tab.locator("#topic-summary dd").first.inner_text()
    with Client(cluster.bootstrap) as client:
        producer = Producer(client)
        for _ in range(1000):
            producer.send("payments", b"k", b"v", (), 0)
        producer.flush()
    tab.wait_for_function("before => document.querySelector('#topic-summary dd').innerText !== before", arg=before)
    tab.locator(".chart canvas").wait_for()


def test_theme_is_switched_and_kept(tab):
    tab.goto("/")
    tab.get_by_role("button", name="Switch between light and dark").click()
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    tab.reload()
    assert tab.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"


def test_page_says_that_broker_is_away_and_recovers(browser, serve):
    with Cluster(topics=["kept"]) as cluster:
        port = int(cluster.bootstrap.rpartition(":")[2])
        console = serve(cluster.bootstrap, timeout=2)
        context = browser.new_context(base_url=console.address)
        context.set_default_timeout(120_000)
        page = context.new_page()
        page.goto("/topics")
        page.get_by_role("link", name="kept").wait_for()
    page.get_by_text("does not answer").first.wait_for()
    page.goto("/groups")
    page.get_by_text("The cluster does not answer").wait_for()
    with Cluster(topics=["replaced"], ports=[port]):
        page.get_by_text("No groups yet").wait_for()
        page.goto("/topics")
        page.get_by_role("link", name="replaced").wait_for()
        context.close()
