"""Consumer groups: how soon a new member reads, what a thousand groups cost while nothing happens, how long 848 thinks.

    python bench/groups.py [--rounds N] [--groups N] [--seconds N]

The first figure is taken next to kfake and Apache Kafka with the same client; the others have no peer that does the
same, and are given as processor time.
"""

from __future__ import annotations

import argparse
import resource
import selectors
import socket
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conversations.side_by_side import Wire
from tests.groups.world import World, answered

from bench.peers import Peer, available, start_ottla
from ottla.protocol.framing import encode_request
from ottla.protocol.messages import k10_find_coordinator as k10
from ottla.protocol.messages import k11_join_group as k11
from ottla.protocol.messages import k12_heartbeat as k12
from ottla.protocol.messages import k14_sync_group as k14
from ottla.protocol.messages import k15_describe_groups as k15

if TYPE_CHECKING:
    from collections.abc import Callable

QUIET = {"log_level": 0}
MEMBERS = 3
HEARTBEAT_SECONDS = 3.0


def first_records(start: Callable[[Path], Peer], rounds: int) -> tuple[str, dict[str, float]]:
    """From subscribe to the first record, in milliseconds, each time in a new group."""
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        peer = start(Path(folder))
        try:
            admin = AdminClient({"bootstrap.servers": peer.bootstrap, **QUIET})
            for future in admin.create_topics([NewTopic("first", 1, 1)]).values():
                future.result(30)
            producer = Producer({"bootstrap.servers": peer.bootstrap, **QUIET})
            producer.produce("first", b"x")
            assert producer.flush(30) == 0
            figures = {}
            for protocol in ("classic", "consumer"):
                took = [first_record(peer, protocol) for _ in range(rounds + 1)]
                figures[protocol] = statistics.median(took[1:])
        finally:
            peer.stop()
    return peer.name, figures


def first_record(peer: Peer, protocol: str) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": peer.bootstrap,
            "group.id": str(uuid.uuid4()),
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            **QUIET,
        }
    )
    began = time.perf_counter()
    consumer.subscribe(["first"])
    message = None
    while message is None:
        message = consumer.poll(10)
    assert message.error() is None, message.error()
    took = (time.perf_counter() - began) * 1000
    consumer.close()
    return took


def many_groups(groups: int, seconds: float) -> tuple[float, int]:
    """The share of a core that the broker uses while every member of many groups says that it is alive."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * groups * MEMBERS)), hard))
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        peer = start_ottla(Path(folder))
        try:
            frames = [frame for number in range(groups) for frame in joined(peer, f"group-{number}")]
            host, _, port = peer.bootstrap.rpartition(":")
            sockets = [socket.create_connection((host, int(port))) for _ in frames]
            beat(sockets, frames, HEARTBEAT_SECONDS)
            cpu = peer.cpu_seconds()
            began = time.perf_counter()
            sent = beat(sockets, frames, seconds)
            share = (peer.cpu_seconds() - cpu) / (time.perf_counter() - began)
            for sock in sockets:
                sock.close()
        finally:
            peer.stop()
    return share, sent


def joined(peer: Peer, group: str) -> list[bytes]:
    """Make a stable group of three, and return the heartbeat of each."""
    wires = [Wire(peer.bootstrap, "bench") for _ in range(MEMBERS)]
    wires[0].ask(k10.FindCoordinatorRequest(coordinator_keys=[group]), 4)

    def request(member: str = "") -> k11.JoinGroupRequest:
        protocols = [k11.JoinGroupRequestProtocol(name="range", metadata=b"")]
        return k11.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=60_000,
            member_id=member,
            protocol_type="bench",
            protocols=protocols,
        )

    leader = wires[0].ask(request(), 3)
    assert isinstance(leader, k11.JoinGroupResponse)
    assert leader.error_code == 0, leader
    waiting = [wire.send(request(), 3) for wire in wires[1:]]
    described = k15.DescribeGroupsRequest(groups=[group])
    while len(wires[0].ask(described, 0).groups[0].members) < MEMBERS:  # type: ignore[attr-defined]
        time.sleep(0.001)
    responses = [wires[0].ask(request(leader.member_id), 3)]
    responses += [wire.receive(11, 3, number) for wire, number in zip(wires[1:], waiting, strict=True)]
    generation = leader.generation_id + 1
    frames = []
    for wire, response in zip(wires, responses, strict=True):
        assert isinstance(response, k11.JoinGroupResponse)
        assert response.generation_id == generation, response
        mine = k14.SyncGroupRequest(group_id=group, generation_id=generation, member_id=response.member_id)
        wire.send(mine, 3)
        beat_request = k12.HeartbeatRequest(group_id=group, generation_id=generation, member_id=response.member_id)
        frames.append(bytes(encode_request(12, 4, 1, "bench", beat_request)))
    for wire in wires:
        wire.receive_frame()
        wire.close()
    return frames


def beat(sockets: list[socket.socket], frames: list[bytes], seconds: float) -> int:
    """Send every member's heartbeat once in three seconds, evenly; how many were answered without an error."""
    selector = selectors.DefaultSelector()
    for sock in sockets:
        selector.register(sock, selectors.EVENT_READ)
    began = time.perf_counter()
    due = answered_well = sent = 0
    pace = len(frames) / HEARTBEAT_SECONDS
    while (now := time.perf_counter() - began) < seconds or answered_well < sent:
        due = min(int(now * pace), int(seconds * pace))
        while sent < due:
            sockets[sent % len(sockets)].sendall(frames[sent % len(frames)])
            sent += 1
        for key, _ in selector.select(0.002):
            response = key.fileobj.recv(4096)  # type: ignore[union-attr]
            assert response[-3:-1] == b"\0\0", f"a heartbeat was refused: {response!r}"
            answered_well += 1
    selector.close()
    return sent


def thinking(members: int, partitions: int) -> dict[str, float]:
    """Processor time of the heartbeat that computes the assignment of a whole group, in milliseconds."""
    figures = {}
    for assignor in ("uniform", "range"):
        world = World()
        world.create_topic("big", partitions)
        took = []
        for number in range(members):
            began = time.process_time()
            response = answered(
                world.consumer_heartbeat(
                    f"member-{number}", 0, topics=["big"], owned={}, rebalance_ms=60_000, assignor=assignor
                )
            )
            assert response.error_code == 0, response
            took.append((time.process_time() - began) * 1000)
        figures[f"{assignor}, the last member joins"] = max(took[-10:])
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="new groups per broker and protocol (20)")
    parser.add_argument("--groups", type=int, default=1000, help="groups of three members (1000)")
    parser.add_argument("--seconds", type=float, default=12, help="how long they are held (12)")
    options = parser.parse_args()
    results = dict(first_records(start, options.rounds) for start in available())
    print(f"From subscribe to the first record of a new group, ms (median of {options.rounds}):\n")
    print("| | " + " | ".join(results) + " |")
    print("|---|" + "---:|" * len(results))
    for protocol in ("classic", "consumer"):
        print(f"| {protocol} | " + " | ".join(f"{figures[protocol]:.0f}" for figures in results.values()) + " |")
    share, sent = many_groups(options.groups, options.seconds)
    print(
        f"\n{options.groups} groups of {MEMBERS}, each member on its own connection with a heartbeat every "
        f"{HEARTBEAT_SECONDS:.0f} s: {share:.1%} of one core ({sent} heartbeats, none refused).\n"
    )
    print("A consumer group (848) of 500 members on 1,000 partitions, processor time of the heartbeat that assigns:\n")
    print("| | ms |")
    print("|---|---:|")
    for what, took in thinking(500, 1000).items():
        print(f"| {what} | {took:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
