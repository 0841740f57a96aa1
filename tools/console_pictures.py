"""Make the pictures of docs/console.md and README.md: a busy cluster, its console, and Debian's chromium.

    python tools/console_pictures.py [--out docs/images]

Needs playwright and a chromium (Debian: apt-get install chromium).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Producer
from playwright.sync_api import sync_playwright

from ottla.testing import Cluster
from ottla.testing.security import allow, deny

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page

ROOT = Path(__file__).parent.parent
SECONDS = 25
NAMES = ("ada", "grace", "edsger", "barbara", "alan", "katherine")
ACLS = [
    allow("User:billing", "read", topic="orders"),
    allow("User:billing", "read", group="billing"),
    allow("User:shop", "write", topic="orders"),
    allow("User:analytics", "read", topic="*"),
    deny("User:analytics", "read", topic="payments"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    topics = {
        "orders": {"partitions": 12, "replication_factor": 3},
        "payments": {"partitions": 6, "replication_factor": 2, "configs": {"cleanup.policy": "compact"}},
        "inventory": {"partitions": 8, "replication_factor": 3},
        "clicks": 24,
        "audit.log": 1,
    }
    with Cluster(brokers=3, topics=topics, console=True) as cluster, traffic(cluster.bootstrap):
        take(cluster.console_url, out)
    with Cluster(topics=["orders"], superusers={"root": "root-word"}, acls=ACLS, console=True) as cluster:
        picture(
            cluster.console_url,
            out / "console-security.png",
            "/security?principal=analytics&operation=read&resource=topic&name=payments",
        )


@contextlib.contextmanager
def traffic(bootstrap: str) -> Iterator[None]:
    """A shop, payments in transactions, one stuck transaction, and three groups."""
    stop = threading.Event()
    works = [(shop, ()), (payments, ()), (stuck, ())]
    works += [(consume, ("billing", ["orders"], f"billing-{number}", "classic", 0.0)) for number in (1, 2, 3)]
    works += [(consume, ("warehouse", ["orders", "inventory"], f"warehouse-{n}", "consumer", 0.6)) for n in (1, 2)]
    works.append((consume, ("clickstream", ["clicks"], "analytics", "classic", 0.0)))
    threads = [threading.Thread(target=work, args=(bootstrap, stop, *more)) for work, more in works]
    for thread in threads:
        thread.start()
        stop.wait(0.7)
    stop.wait(SECONDS)
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def shop(bootstrap: str, stop: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": "zstd"})
    random.seed(1)
    number = 0
    while not stop.wait(0.25):
        for _ in range(random.randint(20, 80)):
            number += 1
            name, sku = random.choice(NAMES), f"B-{random.randint(100, 999)}"
            items = [{"sku": sku, "quantity": random.randint(1, 4)}]
            order = {"order": number, "customer": name, "total": round(random.random() * 200, 2), "items": items}
            headers = [("trace-id", f"{random.getrandbits(64):016x}"), ("source", "web")]
            producer.produce("orders", json.dumps(order), name, headers=headers)
            producer.produce("clicks", f"/product/{sku}", name)
            if number % 5 == 0:
                producer.produce("inventory", json.dumps({"sku": sku, "stock": number % 40}), sku)
        producer.poll(0)
    producer.flush()


def payments(bootstrap: str, stop: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "payment-service-1"})
    producer.init_transactions()
    number = 0
    while not stop.wait(0.6):
        producer.begin_transaction()
        for _ in range(5):
            number += 1
            producer.produce("payments", json.dumps({"payment": number}), f"order-{number}")
        producer.flush()
        producer.abort_transaction() if number % 35 == 0 else producer.commit_transaction()


def stuck(bootstrap: str, stop: threading.Event) -> None:
    settings = {"transactional.id": "refund-worker", "transaction.timeout.ms": 600_000}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("payments", b"{}", b"refund")
    producer.produce("audit.log", b"refund started")
    producer.flush()
    stop.wait()
    producer.abort_transaction()


def consume(
    bootstrap: str, stop: threading.Event, group: str, topics: list[str], client: str, protocol: str, pause: float
) -> None:
    settings = {"auto.offset.reset": "earliest", "auto.commit.interval.ms": 1000, "group.protocol": protocol}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "client.id": client, **settings})
    consumer.subscribe(topics)
    while not stop.wait(pause):
        consumer.consume(20 if pause else 500, 0.5)
    consumer.close()


def take(url: str, out: Path) -> None:
    def open_record(page: Page) -> None:
        page.locator("tr[data-record]").nth(1).click()
        page.locator(".record").wait_for()

    picture(url, out / "console-cluster.png", "/")
    picture(url, out / "console-topics.png", "/topics", wait=6000, height=480)
    picture(url, out / "console-records.png", "/topics/orders/records", act=open_record)
    picture(url, out / "console-group.png", "/groups/show?id=warehouse", height=1000)
    picture(url, out / "console-transactions-dark.png", "/transactions", scheme="dark", height=480)


def picture(
    url: str,
    path: Path,
    page_path: str,
    *,
    scheme: str = "light",
    height: int = 820,
    wait: int = 2500,
    act: Callable[[Page], None] | None = None,
) -> None:
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1240, "height": height}, color_scheme=scheme)
        page = context.new_page()
        page.goto(url)
        page.goto(url.partition("/?")[0] + page_path)
        page.wait_for_timeout(wait)
        if act is not None:
            act(page)
            page.wait_for_timeout(500)
        page.screenshot(path=path)
        browser.close()
    print(path)


if __name__ == "__main__":
    main()
