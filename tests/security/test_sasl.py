"""SASL mechanisms and exchanges, token by token, without a socket."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cluster.security.scram import credential_from_password
from ottla.security.jaas import parse_jaas
from ottla.security.sasl.conversation import TRANSITIONS, Conversation, Event, IllegalStepError, State
from ottla.security.sasl.mechanism import Authenticated, SaslError
from ottla.security.sasl.oauthbearer import ACKNOWLEDGED, OAuthBearerServer, oauthbearer_token
from ottla.security.sasl.plain import PlainServer, plain_token
from ottla.security.sasl.scram import (
    MECHANISM_IDS,
    Login,
    ScramClient,
    ScramServer,
    escape,
    mock_credential,
    mock_iterations,
    unescape,
)

if TYPE_CHECKING:
    from ottla.cluster.security.scram import ScramCredential

SECRET = "pencil"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def credential(mechanism: str, password: str = SECRET) -> ScramCredential:
    return credential_from_password(MECHANISM_IDS[mechanism], password.encode(), b"salt of a test", 4096)


def scram_server(mechanism: str, nonce: str = "servernonce") -> ScramServer:
    known = {"alice": Login(credential(mechanism), "User:alice")}
    return ScramServer(
        mechanism,
        lambda name, is_token: None if is_token else known.get(name),
        lambda name, _: mock_credential(mechanism, b"secret", name),
        nonce,
    )


# PLAIN


def test_plain_accepts_right_password() -> None:
    server = PlainServer({"alice": SECRET}.get)
    assert server.evaluate(plain_token("alice", SECRET)) == b""
    assert server.result == Authenticated("User:alice")
    with pytest.raises(SaslError):
        server.evaluate(plain_token("alice", SECRET))


@pytest.mark.parametrize(
    "token",
    [
        plain_token("alice", "wrong"),
        plain_token("nobody", SECRET),
        plain_token("alice", ""),
        plain_token("", SECRET),
        b"bob\0alice\0pencil",
        b"alice\0pencil",
        b"\0alice\0pen\0cil",
        b"\0\xff\xfe\0pencil",
        b"",
    ],
)
def test_plain_refuses_other_messages(token: bytes) -> None:
    server = PlainServer({"alice": SECRET}.get)
    with pytest.raises(SaslError) as caught:
        server.evaluate(token)
    assert SECRET not in str(caught.value)
    assert server.result is None


def test_plain_does_not_reveal_users() -> None:
    def refusal(name: str) -> str:
        with pytest.raises(SaslError) as caught:
            PlainServer({"alice": SECRET}.get).evaluate(plain_token(name, "wrong"))
        return str(caught.value)

    assert refusal("alice") == refusal("nobody")


# SCRAM


@pytest.mark.parametrize("mechanism", SCRAM)
def test_scram_authenticates_both_sides(mechanism: str) -> None:
    server = scram_server(mechanism)
    client = ScramClient(mechanism, "alice", SECRET, "clientnonce")
    client.check(server.evaluate(client.final(server.evaluate(client.first()))))
    assert server.result == Authenticated("User:alice")


def test_scram_matches_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    known = Login(credential_from_password(1, b"pencil", salt, 4096), "User:user")
    server = ScramServer(
        "SCRAM-SHA-256", lambda *_: known, lambda _: known.credential, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    first = server.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = server.evaluate(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


Tamper = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    "tamper",
    [
        pytest.param(lambda m: m.replace(b"servernonce", b"othernonce!"), id="another nonce"),
        pytest.param(lambda m: m.replace(b"c=biws", b"c=eSws"), id="another channel binding"),
        pytest.param(lambda m: m[:-6] + b"AAAAA=", id="another proof"),
        pytest.param(lambda m: m.rpartition(b",p=")[0] + b",p=AAAA", id="a short proof"),
        pytest.param(lambda m: m.rpartition(b",p=")[0], id="no proof"),
        pytest.param(lambda m: m[:20], id="truncated"),
        pytest.param(lambda m: m + b"," * 20_000, id="oversized"),
        pytest.param(lambda m: b"", id="empty"),
        pytest.param(lambda m: b"\xff" * 40, id="no text"),
        pytest.param(lambda m: m.replace(b",p=", b",m=x,p="), id="one attribute more than was signed"),
    ],
)
@pytest.mark.parametrize("mechanism", SCRAM)
def test_tampered_final_message_fails(mechanism: str, tamper: Tamper) -> None:
    server = scram_server(mechanism)
    client = ScramClient(mechanism, "alice", SECRET, "clientnonce")
    final = client.final(server.evaluate(client.first()))
    with pytest.raises(SaslError):
        server.evaluate(tamper(final))
    assert server.result is None
    with pytest.raises(SaslError):
        server.evaluate(final)  # a failed exchange is over


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,", b"y,,n=alice,r=x", b"p=tls-unique,,n=alice,r=x", b"n,,n=,r=x", b"n,,n=alice,r=", b"n,,n=al=ce,r=x"],
)
def test_invalid_first_message_fails(message: bytes) -> None:
    with pytest.raises(SaslError):
        scram_server("SCRAM-SHA-256").evaluate(message)


def test_proof_of_another_exchange_fails() -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", SECRET, "clientnonce")
    first = scram_server("SCRAM-SHA-256", "nonceone")
    heard = client.final(first.evaluate(client.first()))
    first.evaluate(heard)
    second = scram_server("SCRAM-SHA-256", "noncetwo")
    second.evaluate(client.first())
    with pytest.raises(SaslError):
        second.evaluate(heard)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_unknown_user_fails_like_wrong_password(mechanism: str) -> None:
    def refusal(name: str) -> tuple[str, bytes]:
        server = scram_server(mechanism)
        client = ScramClient(mechanism, name, "wrong", "clientnonce")
        challenge = server.evaluate(client.first())
        with pytest.raises(SaslError) as caught:
            server.evaluate(client.final(challenge))
        return str(caught.value), challenge

    wrong, known_challenge = refusal("alice")
    unknown, challenge = refusal("nobody")
    assert wrong == unknown
    assert refusal("nobody")[1] == challenge, "the same salt each time"
    assert challenge != refusal("somebody")[1]
    assert challenge.count(b",") == known_challenge.count(b",")


@pytest.mark.parametrize("mechanism", SCRAM)
def test_iterations_of_unknown_users_follow_those_of_known_users(mechanism: str) -> None:
    def share(counts: dict[int, int]) -> dict[int, float]:
        drawn = Counter(mock_iterations(counts, mechanism, b"secret", f"user-{number}") for number in range(2000))
        return {iterations: count / 2000 for iterations, count in drawn.items()}

    assert share({}) == {4096: 1.0}
    assert share({8192: 3}) == {8192: 1.0}
    assert share({4096: 1, 8192: 3}) == pytest.approx({4096: 0.25, 8192: 0.75}, abs=0.05)


def test_mock_credential_never_authenticates() -> None:
    """Even a client that knows the mock credential does not authenticate."""
    mechanism = "SCRAM-SHA-256"
    fake = credential(mechanism, "guess")
    server = ScramServer(mechanism, lambda *_: None, lambda *_: fake, "servernonce")
    client = ScramClient(mechanism, "nobody", "guess", "clientnonce")
    with pytest.raises(SaslError):
        server.evaluate(client.final(server.evaluate(client.first())))


def test_client_refuses_server_without_password() -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", SECRET, "clientnonce")
    server = scram_server("SCRAM-SHA-256")
    client.final(server.evaluate(client.first()))
    with pytest.raises(SaslError, match="prove"):
        client.check(b"v=" + base64.b64encode(hmac.digest(b"x", b"y", hashlib.sha256)))
    with pytest.raises(SaslError, match="nonce"):
        client.final(b"r=somethingelse,s=c2FsdA==,i=4096")
    with pytest.raises(SaslError, match="iterations"):
        client.final(b"r=clientnonceX,s=c2FsdA==,i=1")


@given(st.text(min_size=1))
def test_escaped_names_round_trip(name: str) -> None:
    assert unescape(escape(name)) == name


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_sasl_errors(token: bytes) -> None:
    for server in (
        scram_server("SCRAM-SHA-256"),
        PlainServer({"alice": SECRET}.get),
        OAuthBearerServer(lambda token: Authenticated("User:x")),
    ):
        try:
            server.evaluate(token)
        except SaslError:
            assert server.result is None


# OAUTHBEARER


def test_rejected_bearer_token_is_answered_then_fails() -> None:
    def refuse(token: str) -> Authenticated:
        raise SaslError("expired")

    server = OAuthBearerServer(refuse)
    assert server.evaluate(oauthbearer_token("a.b.c")) == b'{"status":"invalid_token"}'
    with pytest.raises(SaslError, match="expired"):
        server.evaluate(ACKNOWLEDGED)
    with pytest.raises(SaslError):
        server.evaluate(ACKNOWLEDGED)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01",
        b"n,a=eve,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Bearer " + b"x" * 100_000 + b"\x01\x01",
    ],
)
def test_invalid_bearer_message_fails(message: bytes) -> None:
    server = OAuthBearerServer(lambda token: Authenticated("User:alice"))
    with pytest.raises(SaslError):
        server.evaluate(message)
    assert server.result is None


# Exchanges


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


def conversation(lifetime_ms: int = 0, clock: Clock | None = None, expires_ms: int | None = None) -> Conversation:
    users = {"alice": SECRET, "bob": SECRET}

    def start(mechanism: str) -> PlainServer | OAuthBearerServer:
        if mechanism == "OAUTHBEARER":
            return OAuthBearerServer(lambda token: Authenticated("User:alice", expires_ms))
        return PlainServer(users.get)

    return Conversation(("PLAIN", "OAUTHBEARER"), start, lambda _: lifetime_ms, clock or Clock())


def log_in(talk: Conversation, name: str = "alice") -> int:
    assert talk.handshake("PLAIN", 1)
    return talk.token(plain_token(name, SECRET))[1]


def test_all_requests_are_allowed_after_last_token() -> None:
    talk = conversation()
    talk.step(Event.API_VERSIONS)
    assert log_in(talk) == 0
    assert talk.result == Authenticated("User:alice")
    talk.step(Event.OTHER)
    talk.step(Event.API_VERSIONS)


def test_unknown_mechanism_fails_exchange() -> None:
    talk = conversation()
    assert not talk.handshake("GSSAPI", 1)
    assert talk.state is State.FAILED


def test_transitions_outside_the_table_are_refused() -> None:
    for state in State:
        for event in Event:
            talk = conversation()
            talk.state = state
            if (state, event) in TRANSITIONS:
                talk.step(event)
                assert talk.state is TRANSITIONS[state, event]
            else:
                with pytest.raises(IllegalStepError):
                    talk.step(event)
                assert talk.state is state


def test_only_sasl_events_lead_to_authenticated_state() -> None:
    """Only a success, which only a mechanism causes, leads from the start to the authenticated state."""
    reached, todo = {State.START}, [State.START]
    while todo:
        state = todo.pop()
        for (before, event), after in TRANSITIONS.items():
            if before is state and event is not Event.SUCCESS and after not in reached:
                reached.add(after)
                todo.append(after)
    assert State.AUTHENTICATED not in reached
    assert not any((state, Event.OTHER) in TRANSITIONS for state in reached)


def test_second_handshake_during_exchange_is_refused() -> None:
    talk = conversation()
    assert talk.handshake("PLAIN", 1)
    with pytest.raises(IllegalStepError):
        talk.handshake("OAUTHBEARER", 1)


def test_session_expires_and_is_renewed() -> None:
    clock = Clock()
    talk = conversation(60_000, clock)
    assert log_in(talk) == 60_000
    assert talk.renewable
    clock.now += 59_999
    assert not talk.expired
    clock.now += 1
    assert talk.expired
    assert log_in(talk) == 60_000
    assert not talk.expired


def test_session_renewal_requires_same_principal_and_mechanism() -> None:
    talk = conversation(60_000)
    log_in(talk)
    with pytest.raises(SaslError, match="principals"):
        log_in(talk, "bob")
    assert talk.state is State.FAILED
    talk = conversation(60_000)
    log_in(talk)
    with pytest.raises(SaslError, match="mechanism"):
        talk.handshake("OAUTHBEARER", 1)


@pytest.mark.parametrize(
    ("most", "left", "lifetime"), [(0, None, 0), (60_000, None, 60_000), (60_000, 5_000, 5_000), (0, 5_000, 5_000)]
)
def test_session_expires_with_its_credential(most: int, left: int | None, lifetime: int) -> None:
    clock = Clock()
    talk = conversation(most, clock, None if left is None else clock.now + left)
    assert talk.handshake("OAUTHBEARER", 1)
    assert talk.token(oauthbearer_token("a.b.c"))[1] == lifetime


# JAAS


def test_jaas_section_is_parsed() -> None:
    section = parse_jaas(
        'org.apache.kafka.PlainLoginModule required username="a\\"b" password=\'c d\' user_alice="x;y" n=1 ;'
    )
    assert section.options == {"username": 'a"b', "password": "c d", "user_alice": "x;y", "n": "1"}
    assert section.users == {"alice": "x;y"}
    assert "c d" not in repr(section)


@pytest.mark.parametrize(
    "text", ["", "X", "X required", 'X required password="s3cret"', "X maybe;", 'X required a="s3cret', "X required =;"]
)
def test_invalid_jaas_section_error_hides_secrets(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_jaas(text)
    assert "s3cret" not in str(caught.value)
