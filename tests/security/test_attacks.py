"""Attacks on a listener with SASL by a client without a password."""

from __future__ import annotations

import resource
import select
import socket
from struct import pack, unpack
from typing import TYPE_CHECKING, Any

import pytest

from ottla.client.access import AclFilter, create_acls, delete_acls
from ottla.client.auth import Login, SessionClock
from ottla.client.connection import BrokerConnection
from ottla.protocol.api import response_class, response_header_version
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.header import ResponseHeader
from ottla.protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.k12_heartbeat import HeartbeatRequest
from ottla.protocol.messages.k17_sasl_handshake import SaslHandshakeRequest
from ottla.protocol.messages.k18_api_versions import ApiVersionsRequest
from ottla.protocol.messages.k36_sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.security.sasl.plain import plain_token
from ottla.security.sasl.scram import ScramClient
from ottla.testing import Cluster, VirtualClock
from ottla.testing.security import allow
from tests.security.clusters import USERS, client, secured, security

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.protocol.schema import Message

pytestmark = pytest.mark.xdist_group("security attacks")  # one worker, one cluster


class Closed(Exception):  # noqa: N818 - it is what happens
    """The broker closed the connection."""


class Wire:
    """A socket that sends anything in any order."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *requests: tuple[Message, int]) -> None:
        data = b""
        for number, (request, version) in enumerate(requests):
            key = request.__schema__.api_key
            assert key is not None
            data += encode_request(key, version, number, "attacker", request)
        self.raw(data)

    def raw(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Closed from error

    def frame(self) -> bytes:
        return self._exactly(unpack(">i", self._exactly(4))[0])

    def frames(self) -> list[bytes]:
        """Return all frames until the broker closes the connection."""
        frames = []
        try:
            while True:
                frames.append(self.frame())
        except Closed:
            return frames

    def readable(self, seconds: float) -> bool:
        return bool(select.select([self.socket], [], [], seconds)[0])

    def answer(self, key: int, version: int) -> Any:
        frame = self.frame()
        _, position = ResponseHeader.decode_from(frame, 0, response_header_version(key, version))
        return response_class(key).decode_from(frame, position, version)[0]

    def ask(self, request: Message, version: int) -> Any:
        self.send((request, version))
        key = request.__schema__.api_key
        assert key is not None
        return self.answer(key, version)

    def closed(self) -> bool:
        try:
            self._exactly(1)
        except Closed:
            return True
        return False

    def log_in(self, name: str = "alice") -> None:
        assert not self.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code
        assert not self.ask(token(plain_token(name, USERS[name])), 2).error_code

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                piece = self.socket.recv(count - len(data))
            except ConnectionError:
                piece = b""
            if not piece:
                raise Closed
            data += piece
        return data


def token(data: bytes) -> SaslAuthenticateRequest:
    return SaslAuthenticateRequest(auth_bytes=data)


METADATA = (MetadataRequest(topics=None), 9)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with secured(configs={"connection.failed.authentication.delay.ms": "10"}) as cluster:
        yield cluster


@pytest.fixture
def wire(cluster: Cluster) -> Iterator[Wire]:
    with Wire(cluster.bootstrap) as wire:
        yield wire


def test_nothing_is_answered_before_authentication(wire: Wire) -> None:
    wire.send(METADATA)
    assert wire.closed()


def test_requests_after_failed_authentication_are_not_answered(wire: Wire) -> None:
    wire.send(
        (SaslHandshakeRequest(mechanism="PLAIN"), 1), (token(plain_token("alice", "wrong")), 2), METADATA, METADATA
    )
    assert not wire.answer(17, 1).error_code
    assert wire.answer(36, 2).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert wire.closed()


def test_requests_before_last_token_are_not_answered(wire: Wire) -> None:
    wire.send((SaslHandshakeRequest(mechanism="PLAIN"), 1), METADATA, (token(plain_token("alice", USERS["alice"])), 2))
    assert len(wire.frames()) <= 1, "at most the handshake's"


def test_second_api_versions_before_authentication_is_refused(wire: Wire) -> None:
    assert not wire.ask(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3).error_code
    wire.send((ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3))
    assert wire.closed()


def test_mechanism_cannot_change_during_exchange(wire: Wire) -> None:
    assert not wire.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1).error_code
    scram = ScramClient("SCRAM-SHA-256", "alice", USERS["alice"], "clientnonce")
    assert not wire.ask(token(scram.first()), 2).error_code
    wire.send((SaslHandshakeRequest(mechanism="PLAIN"), 1))
    assert wire.closed()


def test_token_without_handshake_is_refused(wire: Wire) -> None:
    wire.send((token(plain_token("alice", USERS["alice"])), 2))
    assert wire.closed()


def test_unknown_mechanism_gets_list_of_enabled_ones(wire: Wire) -> None:
    response = wire.ask(SaslHandshakeRequest(mechanism="GSSAPI"), 1)
    assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert response.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert wire.closed()


@pytest.mark.parametrize("size", [524_289, 2**31 - 1, -1])
def test_oversized_frame_is_refused_before_it_is_read(wire: Wire, size: int) -> None:
    wire.raw(pack(">i", size))
    assert wire.closed()


@pytest.mark.parametrize("data", [b"", b"\0alice", b"\0alice\0", b"x" * 500_000])
def test_truncated_or_huge_token_fails(wire: Wire, data: bytes) -> None:
    assert not wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code
    assert wire.ask(token(data), 2).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert wire.closed()


def test_replayed_scram_proof_fails(cluster: Cluster) -> None:
    scram = ScramClient("SCRAM-SHA-512", "alice", USERS["alice"], "clientnonce")
    with Wire(cluster.bootstrap) as first:
        first.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1)
        overheard = scram.final(first.ask(token(scram.first()), 2).auth_bytes)
        assert not first.ask(token(overheard), 2).error_code
    with Wire(cluster.bootstrap) as second:
        second.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1)
        second.ask(token(scram.first()), 2)
        assert second.ask(token(overheard), 2).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_unknown_user_and_wrong_password_get_same_response(cluster: Cluster) -> None:
    def refusal(name: str) -> tuple[int, str | None]:
        scram = ScramClient("SCRAM-SHA-256", name, "wrong", "clientnonce")
        with Wire(cluster.bootstrap) as wire:
            wire.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
            response = wire.ask(token(scram.final(wire.ask(token(scram.first()), 2).auth_bytes)), 2)
            return response.error_code, response.error_message

    assert refusal("alice") == refusal("nobody")


def test_bare_tokens_follow_handshake_v0(wire: Wire) -> None:
    assert not wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0).error_code
    data = plain_token("admin", USERS["admin"])
    wire.raw(pack(">i", len(data)) + data)
    assert wire.frame() == b""
    assert wire.ask(*METADATA).topics


def test_failed_bare_token_closes_connection_without_response(wire: Wire) -> None:
    assert not wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0).error_code
    data = plain_token("admin", "wrong")
    wire.raw(pack(">i", len(data)) + data)
    assert wire.closed()


def test_reauthentication_cannot_change_principal(wire: Wire) -> None:
    wire.log_in("alice")
    assert wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    refused = wire.ask(token(plain_token("admin", USERS["admin"])), 2)
    assert refused.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert wire.ask(*METADATA).topics == [], "still alice, who may see nothing"


def test_unknown_names_get_same_response_as_existing_ones(wire: Wire) -> None:
    wire.log_in("alice")
    for group in ("there", "not-there"):
        response = wire.ask(HeartbeatRequest(group_id=group, member_id="m"), 4)
        assert response.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_authentication_failure_is_answered_after_delay() -> None:
    clock = VirtualClock()
    with (
        secured(clock=clock, configs={"connection.failed.authentication.delay.ms": "5000"}) as cluster,
        Wire(cluster.bootstrap) as wire,
    ):
        wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        wire.send((token(plain_token("alice", "wrong")), 2))
        assert not wire.readable(0.3)
        for _ in range(60):  # the broker may not have read the token yet
            cluster.advance(5)
            if wire.readable(0.5):
                break
        assert wire.answer(36, 2).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert wire.closed()


def test_expired_session_closes_and_renewed_session_continues() -> None:
    clock = VirtualClock()
    with (
        secured(clock=clock, configs={"connections.max.reauth.ms": "60000"}) as cluster,
        Wire(cluster.bootstrap) as wire,
        Wire(cluster.bootstrap) as lazy,
    ):
        for entry in (wire, lazy):
            assert not entry.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code
            response = entry.ask(token(plain_token("admin", USERS["admin"])), 2)
            assert response.session_lifetime_ms == 60_000
        cluster.advance(50)
        wire.log_in("admin")
        cluster.advance(20)
        assert wire.ask(*METADATA).topics
        lazy.send(METADATA)
        assert lazy.closed()


def test_renewed_session_must_have_same_principal() -> None:
    with (
        secured(configs={"connections.max.reauth.ms": "60000", "connection.failed.authentication.delay.ms": "0"}) as c,
        Wire(c.bootstrap) as wire,
    ):
        wire.log_in("alice")
        assert not wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code
        refused = wire.ask(token(plain_token("admin", USERS["admin"])), 2)
        assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert wire.closed()


def test_client_reauthenticates_before_session_expires() -> None:
    clock = VirtualClock()
    now = 0.0
    with secured(clock=clock, configs={"connections.max.reauth.ms": "60000"}) as cluster:
        host, _, port = cluster.bootstrap.rpartition(":")
        ours = BrokerConnection(host, int(port), timeout=60, security=security("admin", "SCRAM-SHA-256"))
        ours._session = SessionClock(lambda: now)
        for _ in range(4):
            assert ours.send(METADATA[0], MetadataResponse).topics
            cluster.advance(52)
            now += 52
        ours.close()


def test_thousand_unauthenticated_connections_do_not_block_others(cluster: Cluster) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 1000
    if soft < 3 * count:
        expected = 3 * count if hard == resource.RLIM_INFINITY else min(hard, 3 * count)
        resource.setrlimit(resource.RLIMIT_NOFILE, (expected, hard))
        if expected < 2 * count + 200:
            count = (expected - 200) // 2
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    strangers: list[socket.socket] = []
    host, _, port = cluster.bootstrap.rpartition(":")
    try:
        for number in range(count):
            stranger = socket.create_connection((host, int(port)), timeout=60)
            strangers.append(stranger)
            # Send half a frame each; the rest never follows.
            stranger.sendall(pack(">i", 400_000) + b"x" * (number % 1000))
        with client(cluster, "admin", "SCRAM-SHA-256") as ours:
            assert [topic.name for topic in ours.topics()] == ["orders"]
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 200 * 1024, f"{grown} KiB for {count} strangers"
    finally:
        for stranger in strangers:
            stranger.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_repr_of_login_hides_secrets() -> None:
    assert "secret" not in repr(Login("PLAIN", "alice", "secret"))


def test_changed_password_takes_effect_at_once() -> None:
    with secured(configs={"connection.failed.authentication.delay.ms": "0"}) as cluster:
        with client(cluster, "admin") as admin:
            name = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
            for value in ("this is no login section", 'PlainLoginModule required user_admin="new-secret";'):
                config = AlterableConfig(name=name, config_operation=0, value=value)
                resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[config])
                request = IncrementalAlterConfigsRequest(resources=[resource])
                admin.to_node(1, request, IncrementalAlterConfigsResponse)
        with client(cluster, "admin", password="new-secret") as renewed:
            assert renewed.topics()
        with client(cluster, "admin") as late, pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
            late.topics()


def test_added_node_requires_authentication() -> None:
    with secured(brokers=2) as cluster:
        cluster.add_node()
        addresses = cluster.call(lambda broker: [next(iter(node.endpoints.values())) for node in broker.nodes.values()])
        assert len(addresses) == 3
        for endpoint in addresses:
            with Wire(f"{endpoint.host}:{endpoint.port}") as wire:
                wire.send(METADATA)
                assert wire.closed()
            with Wire(f"{endpoint.host}:{endpoint.port}") as wire:
                wire.log_in("admin")
                assert wire.ask(*METADATA).topics


def test_acl_takes_effect_and_ends_at_once() -> None:
    with secured() as cluster, client(cluster, "admin") as admin, client(cluster, "alice") as alice:
        for _ in range(3):
            assert alice.topics() == []
            create_acls(admin, [allow("alice", "describe", topic="orders")])
            assert [topic.name for topic in alice.topics()] == ["orders"]
            delete_acls(admin, AclFilter(principal="User:alice"))
