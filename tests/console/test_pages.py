"""Every page without a browser: what it shows, what changes do, bad input, hostile names."""

import html
import json

import pytest

from ottla.client import Client
from ottla.client.reading import bounds
from tests.console.conftest import HOSTILE, Web

PAGES = [
    "/",
    "/brokers/1",
    "/topics",
    "/topics?internal=1&sort=records&down=1",
    "/topics/orders",
    "/topics/orders/records",
    "/topics/orders/consumers",
    "/topics/orders/configs",
    "/groups",
    "/groups/show?id=billing",
    "/groups/show?id=sharing",
    "/transactions",
    "/security",
    "/security/users",
    "/security/quotas",
    "/security/tokens",
]


@pytest.mark.parametrize("path", PAGES)
def test_page_is_shown(web, path):
    answer = web.get(path)
    assert answer.status_code == 200, answer.text
    assert "ottla</title>" in answer.text


@pytest.mark.parametrize("path", [*PAGES, f"/groups/show?id={HOSTILE.encode().hex()}"])
def test_page_has_no_inline_code(web, path):
    text = web.get(path).text
    assert "<img" not in text
    assert " style=" not in text
    assert " onclick=" not in text


def test_missing_topic_broker_and_group_are_404(web):
    for path in ("/topics/nowhere", "/brokers/99", "/groups/show?id=nobody", "/topics/nowhere/records"):
        answer = web.get(path)
        assert answer.status_code == 404, path
        assert "Not found" in answer.text


def test_topics_are_searched_and_sorted(web):
    assert "payments" not in web.get("/topics?q=ORD").text
    names = web.get("/topics?sort=partitions&down=1").text
    assert names.index(">orders<") < names.index(">payments<") < names.index(">empty<")
    assert "No topic matches" in web.get("/topics?q=zzz").text


def test_hostile_names_are_text(web):
    shown = web.get("/groups").text + web.get("/transactions").text
    assert "<img" not in shown
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown
    assert "\u202e" not in shown
    assert "\x1b" not in shown
    assert "{{7*7}}" in html.unescape(shown)
    page = web.get("/groups/show", id=HOSTILE)
    assert page.status_code == 200
    assert "<img" not in page.text


def test_hostile_record_is_text(web):
    events = web.events("/topics/orders/records/stream", "end", **{"from": "oldest", "q": "onerror", "by": "header"})
    rows = "".join(data for name, data in events if name == "rows")
    assert "&lt;img" in rows
    assert "<img" not in rows
    progress = json.loads([data for name, data in events if name == "progress"][-1])
    assert progress["matched"] == 1
    opened = web.get("/topics/orders/records/0/20").text
    assert "<img" not in opened
    assert opened.count("&lt;img src=x onerror=alert(1)&gt;") >= 4


@pytest.mark.parametrize(
    ("by", "text", "count"),
    [
        ("any", "", 50),
        ("key", "key-1", 11),
        ("value", "grace", 20),
        ("header", "web", 50),
        ("path", "$.customer.name = grace", 20),
        ("path", "$.items[0].sku", 50),
        ("path", "order >= 55", 5),
        ("expression", 'value.order < 10 and value.customer.name == "ada"', 6),
    ],
)
@pytest.mark.parametrize("start", ["newest", "oldest"])
def test_filter_finds_records(web, by, text, count, start):
    events = web.events("/topics/orders/records/stream", "end", **{"from": start, "by": by, "q": text})
    assert json.loads([data for name, data in events if name == "progress"][-1])["matched"] == count
    assert events[-1] == ("end", "")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"from": "offset", "at": "x"}, "is not a whole number"),
        ({"from": "time", "at": "yesterday"}, "is not a time"),
        ({"from": "nowhere"}, "begin at newest"),
        ({"partition": "-1"}, "write a number"),
        ({"limit": "0"}, "write a number"),
        ({"by": "expression", "q": "value.a >"}, "invalid syntax"),
        ({"by": "expression", "q": "__import__('os')"}, "is not supported"),
        ({"by": "path", "q": "$..["}, "write a path"),
        ({"by": "path", "q": "x" * 3000}, "at most 2,000 characters"),
    ],
)
def test_bad_query_is_named_at_its_field(web, params, message):
    answer = web.get("/topics/orders/records", **params)
    assert answer.status_code == 422
    assert message in html.unescape(answer.text)
    assert 'aria-invalid="true"' in answer.text


def test_partition_that_does_not_exist_ends_stream_with_reason(web):
    events = web.events("/topics/orders/records/stream", "end", partition="7")
    assert "partitions 0 to 2" in events[-1][1]


def test_record_shows_batch_and_forms(web):
    text = web.get("/topics/orders/records/0/0").text
    assert "gzip" in text
    assert "valid" in text
    assert "producer" in text.lower()
    assert "00000000  7b 22" in text
    assert web.get("/topics/orders/records/0/0/value").content.startswith(b'{"order": 0')
    assert "null" in web.get("/topics/orders/records/2/20").text


def test_records_are_downloaded(web):
    lines = web.get("/topics/orders/records/download", **{"from": "oldest", "format": "json"}).text.splitlines()
    assert len(lines) == 63
    assert json.loads(lines[0])["value"]["customer"]["name"] in ("ada", "grace")
    table = web.get("/topics/orders/records/download", format="csv", q="grace")
    assert table.headers["content-disposition"] == 'attachment; filename="orders.csv"'
    assert len(table.text.splitlines()) == 21


def test_tail_shows_new_records(web, cluster):
    import threading

    from ottla.client.producer import Producer

    stop = threading.Event()

    def write():
        with Client(cluster.bootstrap) as client:
            producer = Producer(client)
            while not stop.wait(0.1):
                for _ in range(200):
                    producer.send("empty", b"k", b"tailed")
                producer.flush()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        events = web.events("/topics/empty/records/stream", "rows", **{"from": "tail"})
    finally:
        stop.set()
        writer.join()
    assert "tailed" in events[-1][1]
    assert events[-1][1].count("<tr") <= 25


# Changes


def test_topic_is_created_changed_and_deleted(web, cluster):
    assert web.get("/new-topic").status_code == 200
    made = web.post("/new-topic", name="made", partitions="2", replication="1", configs="cleanup.policy=compact\n")
    assert made.headers["hx-redirect"] == "/topics/made"
    assert "compact" in web.get("/topics/made/configs").text
    assert web.post("/topics/made/partitions", count="4").headers["hx-redirect"] == "/topics/made"
    lower = web.post("/topics/made/partitions", count="3")
    assert lower.status_code == 422
    assert "partitions" in lower.text
    changed = web.post("/topics/made/configs/edit", key="retention.ms", value="1000")
    assert changed.headers["hx-redirect"] == "/topics/made/configs"
    wrong = web.post("/topics/made/configs/edit", key="retention.ms", value="soon")
    assert wrong.status_code == 422
    assert "soon" in wrong.text
    assert web.post("/topics/made/configs/edit", key="retention.ms", remove="1").status_code == 200
    refused = web.post("/topics/made/delete", confirm="other")
    assert refused.status_code == 422
    assert "type the topic" in html.unescape(refused.text)
    assert web.post("/topics/made/delete", confirm="made").headers["hx-redirect"] == "/topics"
    assert "made" not in cluster.topics()


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"name": ""}, "write a name"),
        ({"name": "a b"}, "a b"),
        ({"name": "ok", "partitions": "many"}, "is not a whole number"),
        ({"name": "ok", "configs": "nonsense"}, "KEY=VALUE"),
        ({"name": "ok", "configs": "no.such=1"}, "no.such"),
        ({"name": "orders"}, "already exists"),
    ],
)
def test_bad_topic_is_refused_beside_field(web, form, message):
    answer = web.post("/new-topic", **form)
    assert answer.status_code == 422
    assert message in html.unescape(answer.text)


@pytest.mark.parametrize("name", ["new", "live", "records", "form"])
def test_topic_with_name_of_a_route_is_shown(web, name):
    assert web.post("/new-topic", name=name, partitions="1").headers["hx-redirect"] == f"/topics/{name}"
    page = web.get(f"/topics/{name}")
    assert page.status_code == 200
    assert f"<title>{name} " in page.text
    assert web.post(f"/topics/{name}/delete", confirm=name).is_success


def test_input_that_is_not_utf8_is_refused(web):
    assert web.http.get("/groups/show?id=%ff%fe").status_code in (400, 404)
    assert web.http.get("/topics/%ff%00").status_code in (400, 404)
    headers = {"X-CSRF-Token": web.csrf, "Origin": str(web.http.base_url).rstrip("/"), "HX-Request": "true"}
    answer = web.http.post("/new-topic", content=b"name=%ff", headers=headers)
    assert answer.status_code in (400, 422)


def test_leader_is_moved(web, cluster):
    with Client(cluster.bootstrap) as client:
        info = client.topics(["orders"])[0].partitions[0]
        target = next(node for node in info.replicas if node != info.leader)
        assert web.post("/topics/orders/leaders", partition="0", node=str(target)).status_code == 200
        assert client.topics(["orders"])[0].partitions[0].leader == target
    assert "has no replica" in web.post("/topics/orders/leaders", partition="0", node="77").text
    assert web.post("/topics/orders/leaders").headers["hx-redirect"] == "/topics/orders"


def test_records_are_trimmed_and_produced(web, cluster):
    web.post("/new-topic", name="written", partitions="1")
    form = {"key": "k", "value": '{"a": 1}', "value_form": "json", "headers": "h: v", "compression": "lz4"}
    answer = web.post("/topics/written/produce", **form)
    assert "at=0" in answer.headers["hx-redirect"]
    assert web.post("/topics/written/produce", key="00ff", key_form="hex", value_null="1").status_code == 200
    again = web.get("/topics/written/produce", partition=0, offset=1).text
    assert "00ff" in again
    wrong = web.post("/topics/written/produce", value="{", value_form="json")
    assert wrong.status_code == 422
    assert "not in the form json" in wrong.text
    assert web.post("/topics/written/trim", offset="1", partition="0").status_code == 200
    with Client(cluster.bootstrap) as client:
        assert bounds(client, "written", [0])[0].start == 1
    assert web.post("/topics/written/trim", offset="99").status_code == 422
    web.post("/topics/written/delete", confirm="written")


def test_offsets_are_previewed_and_reset(web, cluster):
    preview = web.post("/groups/reset", id="billing", target="shift", value="-2", topics="orders", partitions="0,1")
    assert preview.status_code == 200
    assert "Preview of 2 partitions" in preview.text
    assert cluster.group("billing").offsets["orders", 0] == 5
    done = web.post(
        "/groups/reset", id="billing", target="shift", value="-2", topics="orders", partitions="0,1", apply="1"
    )
    assert done.headers["hx-redirect"] == "/groups/show?id=billing"
    assert cluster.group("billing").offsets["orders", 0] == 3
    assert "is not a time" in html.unescape(web.post("/groups/reset", id="billing", target="time", value="soon").text)


def test_transaction_is_aborted(web, cluster):
    from ottla.client.producer import Producer

    with Client(cluster.bootstrap) as client:
        producer = Producer(client, transactional_id="stuck", transaction_timeout_ms=600_000)
        producer.initialize()
        producer.send("payments", b"k", b"v", (), 1)
        producer.flush()
    shown = web.get("/transactions", q="stuck").text
    assert "Ongoing" in shown
    assert "LSO" in shown
    assert web.post("/transactions/abort", id="stuck").headers["hx-redirect"] == "/transactions"
    assert "No hanging transactions" in web.get("/transactions/hanging").text


def test_quota_and_user_are_set_and_removed(web):
    assert web.post(
        "/security/quotas/new", entity="user", name="ada", quota="producer_byte_rate", value="1000"
    ).is_success
    assert "producer_byte_rate" in web.get("/security/quotas").text
    assert web.post("/security/quotas/delete", **{"entity-user": "ada", "quota": "producer_byte_rate"}).is_success
    assert "No quotas" in web.get("/security/quotas").text
    assert web.post("/security/quotas/new", entity="user", quota="producer_byte_rate", value="x").status_code == 422
    user = {"name": "ada", "password": "secret-word", "mechanism": "SCRAM-SHA-256", "iterations": "4096"}
    assert web.post("/security/users/new", **user).is_success
    page = web.get("/security/users").text
    assert "SCRAM-SHA-256" in page
    assert "secret-word" not in page
    assert web.post("/security/users/delete", name="ada", mechanism="SCRAM-SHA-256").is_success
    refused = web.post("/security/users/new", **{**user, "iterations": "1"})
    assert refused.status_code == 422
    assert "secret-word" not in refused.text


def test_read_only_console_has_no_buttons(cluster, serve):
    web = Web(serve(cluster.bootstrap, read_only=True).address)
    for path in PAGES:
        assert "hx-post" not in web.get(path).text
    assert "Create topic" not in web.get("/topics").text
    assert web.post("/new-topic", name="x").status_code == 403
