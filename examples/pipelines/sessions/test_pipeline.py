"""Sessions against a plain Python computation, with late clicks and with a driver that dies in between."""

import json
import random
from collections import defaultdict

from pipeline import as_records, sessions

MINUTE = 60_000
START = 1_767_225_600_000  # 2026-01-01T00:00:00Z
GAP = 10 * MINUTE


def shop_traffic(seed: int, users: int = 8, minutes: int = 240) -> list[dict[str, object]]:
    """Clicks in the order in which they arrive: each up to 10 minutes late."""
    dice = random.Random(seed)
    clicks, order = [], 0
    for user in range(users):
        at = START + dice.randrange(30 * MINUTE)
        while at < START + minutes * MINUTE:
            click: dict[str, object] = {"user": f"user-{user}", "at": at, "page": f"/{dice.randrange(50)}"}
            if dice.random() < 0.3:
                order += 1
                click |= {"order": order, "amount": dice.randrange(1, 100)}
            clicks.append((at + dice.randrange(10 * MINUTE), click))
            at += dice.choice([5_000, 60_000, 4 * MINUTE, 35 * MINUTE])
    return [click for _, click in sorted(clicks, key=lambda event: event[0])]


def plain_sessions(clicks: list[dict[str, object]]) -> set[tuple[object, ...]]:
    """What the pipeline should find."""
    by_user = defaultdict(list)
    for click in clicks:
        by_user[click["user"]].append(click)
    sessions: set[tuple[object, ...]] = set()
    for user, all_of_user in by_user.items():
        session: list[dict[str, object]] = []
        for click in [*sorted(all_of_user, key=lambda event: event["at"]), None]:
            if session and (click is None or click["at"] - session[-1]["at"] >= GAP):
                orders = [event for event in session if "order" in event]
                end = session[-1]["at"] + GAP
                spent = sum(order["amount"] for order in orders)
                sessions.add((user, session[0]["at"], end, len(session), len(orders), spent))
                session = []
            if click is not None:
                session.append(click)
    return sessions


def test_sessions_are_those_of_plain_python_after_a_kill(spark_kafka):
    spark_kafka.create_topic("clicks", 3)
    spark_kafka.create_topic("sessions", 2)
    clicks = shop_traffic(seed=7)
    middle = len(clicks) // 2

    def send(some):
        spark_kafka.produce_many("clicks", [(click["user"], json.dumps(click)) for click in some])

    def run(**how):
        stream = as_records(sessions(spark_kafka.stream("clicks")))
        writer = stream.writeStream.format("ottla").options(**spark_kafka.options).option("topic", "sessions")
        spark_kafka.run(writer.option("exactlyOnce", "true"), **how)

    send(clicks[:middle])
    run(killed=True)
    # Days too late: the watermark is past it, it is not counted.
    send([{"user": "user-0", "at": START - 2 * 24 * 60 * MINUTE, "page": "/late"}])
    send(clicks[middle:])
    # Time goes on, so that the last sessions end; this one stays open.
    send([{"user": "nobody", "at": clicks[-1]["at"] + 600 * MINUTE, "page": "/"}])
    run(killed=True)
    run()

    rows = [json.loads(row["value"]) for row in spark_kafka.read("sessions").collect()]
    written = [tuple(row[name] for name in ("user", "start", "end", "clicks", "orders", "spent")) for row in rows]
    assert sorted(written) == sorted(plain_sessions(clicks))
    assert sum(row["orders"] for row in rows) == sum("order" in click for click in clicks)
