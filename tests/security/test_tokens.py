"""OAUTHBEARER: valid and invalid signed tokens; and real clients with tokens."""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jws, jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from ottla.client import Client
from ottla.client.auth import Login, Security
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security.sasl.mechanism import SaslError
from ottla.security.tokens import ALGORITHMS, TokenRules, TokenValidator, read_key_set
from ottla.testing import Cluster
from ottla.testing.security import AUTHORIZER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("security tokens")  # one worker, one cluster

NOW = 1_800_000_000
ISSUER, AUDIENCE = "https://issuer.example", "kafka"
RULES = TokenRules(issuer=ISSUER, audiences=(AUDIENCE,))
EC = ECKey.generate_key("P-256", {"kid": "ec"})
RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
STRANGER = ECKey.generate_key("P-256", {"kid": "ec"})
KEYS = KeySet([EC, RSA]).as_dict(private=False)


def claims(**changes: Any) -> dict[str, Any]:
    result = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "iat": NOW - 10, "exp": NOW + 600}
    return {key: value for key, value in {**result, **changes}.items() if value is not None}


def signed(key: Any = EC, algorithm: str = "ES256", kid: str = "ec", **changes: Any) -> str:
    return jwt.encode({"alg": algorithm, "kid": kid}, claims(**changes), key, algorithms=[algorithm])


def unsigned(**changes: Any) -> str:
    parts = [{"alg": "none"}, claims(**changes)]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join([*encoded, ""])


def validator(rules: TokenRules = RULES) -> TokenValidator:
    return TokenValidator(rules, KEYS, lambda: NOW * 1000)


@pytest.mark.parametrize(
    "token",
    [
        signed(),
        signed(RSA, "RS256", "rsa"),
        signed(RSA, "PS256", "rsa"),
        signed(aud=["other", AUDIENCE]),
        signed(exp=NOW - 29),
        signed(nbf=NOW + 29),
    ],
)
def test_valid_token_has_its_principal(token: str) -> None:
    assert validator()(token).principal == "User:alice"


def test_session_expires_with_the_token() -> None:
    assert validator()(signed()).expires_ms == (NOW + 600) * 1000


def test_principal_claim_is_configurable() -> None:
    assert validator(TokenRules(principal_claim="email"))(signed(email="a@b")).principal == "User:a@b"


def _confused() -> str:
    """Return a token signed with the public key as a shared secret."""
    parts = [{"alg": "HS256", "kid": "ec"}, claims()]
    message = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts)
    digest = hmac.digest(EC.as_pem(private=False), message.encode(), "sha256")
    return f"{message}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def _altered() -> str:
    header, _, signature = signed().split(".")
    body = base64.urlsafe_b64encode(json.dumps(claims(sub="admin")).encode()).rstrip(b"=").decode()
    return f"{header}.{body}.{signature}"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(lambda: signed(exp=NOW - 31), "expired", id="expired"),
        pytest.param(lambda: signed(exp=None), "expires", id="without an end"),
        pytest.param(lambda: signed(exp="tomorrow"), "expires", id="with a strange end"),
        pytest.param(lambda: signed(nbf=NOW + 31), "not valid yet", id="too early"),
        pytest.param(lambda: signed(iss="https://else.example"), "issuer", id="another issuer"),
        pytest.param(lambda: signed(iss=None), "issuer", id="no issuer"),
        pytest.param(lambda: signed(aud="other"), "audience", id="another audience"),
        pytest.param(lambda: signed(aud=None), "audience", id="no audience"),
        pytest.param(lambda: signed(sub=None), "no sub claim", id="no subject"),
        pytest.param(lambda: signed(sub=7), "no sub claim", id="subject is a number"),
        pytest.param(lambda: signed(STRANGER), "signature", id="another key"),
        pytest.param(lambda: signed(kid="unknown"), "not known", id="an unknown key"),
        pytest.param(unsigned, "signed", id="alg none"),
        pytest.param(_confused, "signed", id="a public key as a secret"),
        pytest.param(_altered, "signature", id="altered"),
        pytest.param(lambda: signed()[:-4], "signature", id="truncated"),
        pytest.param(lambda: "a.b", "JWT", id="two parts"),
        pytest.param(lambda: "!.!.!", "JWT", id="no base64"),
    ],
)
def test_invalid_token_is_refused(make: Callable[[], str], reason: str) -> None:
    token = make()
    with pytest.raises(SaslError, match=reason) as caught:
        validator()(token)
    assert token not in str(caught.value)


def test_unknown_key_triggers_refresh() -> None:
    requested = []
    checked = validator()
    checked.on_unknown_key = lambda: requested.append(1)
    with pytest.raises(SaslError):
        checked(signed(kid="new"))
    assert requested == [1]


def test_unsigned_tokens_require_permission() -> None:
    relaxed = validator(TokenRules(allow_unsigned=True))
    assert relaxed(unsigned()).principal == "User:alice"
    with pytest.raises(SaslError):
        validator(TokenRules())(unsigned())


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"keys": 1}'])
def test_file_without_keys_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"jwks\.json"):
        read_key_set(path.as_uri())


def joined(*parts: Any) -> str:
    """Return a token of these JSON parts, with bytes unchanged."""
    texts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in parts]
    return ".".join(base64.urlsafe_b64encode(text).rstrip(b"=").decode() for text in texts)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
HEADERS = st.fixed_dictionaries(
    {"alg": st.sampled_from([*ALGORITHMS, "none", "HS256"]) | JSON},
    optional={"kid": st.sampled_from(["ec", "rsa"]) | JSON, "crit": JSON, "b64": JSON, "typ": JSON, "jwk": JSON},
)
CLAIMS = st.fixed_dictionaries({}, optional=dict.fromkeys(("sub", "iss", "aud", "iat", "nbf", "exp"), JSON))


@given(HEADERS | JSON, CLAIMS | JSON, st.binary(max_size=80))
def test_random_unsigned_tokens_are_refused(header: Any, body: Any, signature: bytes) -> None:
    with pytest.raises(SaslError):
        validator(TokenRules())(joined(header, body, signature))


@given(CLAIMS)
def test_random_signed_claims_raise_only_sasl_errors(body: dict[str, Any]) -> None:
    token = jws.serialize_compact({"alg": "ES256", "kid": "ec"}, json.dumps(body), EC, algorithms=["ES256"])
    with contextlib.suppress(SaslError):
        assert validator()(token).principal


@pytest.mark.parametrize("deep", [b"[" * 100_000, b'{"a":' * 100_000], ids=["lists", "objects"])
def test_deeply_nested_token_is_refused(deep: bytes) -> None:
    for parts in ((deep, {}, b""), ({"alg": "ES256"}, deep, b"")):
        with pytest.raises(SaslError, match="not a signed JWT"):
            validator()(joined(*parts))


# Over the wire, in real time


def current(**changes: Any) -> str:
    now = int(time.time())
    return signed(**{"iat": now - 10, "exp": now + 600, **changes})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    keys = tmp_path_factory.mktemp("keys") / "jwks.json"
    keys.write_text(json.dumps(KEYS))
    with Cluster(
        configs={
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:alice",
        },
        topics=["orders:1"],
    ) as cluster:
        yield cluster


def client(cluster: Cluster, token: str) -> Client:
    return Client(cluster.bootstrap, timeout=60, security=Security(login=Login("OAUTHBEARER", token=token)))


def test_client_authenticates_with_bearer_token(cluster: Cluster) -> None:
    with client(cluster, current()) as ours:
        assert [topic.name for topic in ours.topics()] == ["orders"]
    with client(cluster, current(sub="bob")) as theirs:
        assert theirs.topics() == []


def test_client_reports_reason_of_rejected_token(cluster: Cluster) -> None:
    with client(cluster, current(exp=int(time.time()) - 100)) as late, pytest.raises(KafkaError) as caught:
        late.topics()
    assert caught.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "expired" in str(caught.value)


def test_confluent_kafka_authenticates_with_bearer_token(cluster: Cluster) -> None:
    def give(_: str) -> tuple[str, float]:
        return current(), time.time() + 600

    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": give,
        }
    )
    producer.produce("orders", b"by token")
    assert producer.flush(60) == 0
    assert cluster.records("orders")[-1].value == b"by token"


async def test_aiokafka_authenticates_with_bearer_token(cluster: Cluster) -> None:
    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return current()

    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Provider(),
    ) as producer:
        await producer.send_and_wait("orders", b"by another token")
    assert cluster.records("orders")[-1].value == b"by another token"


def test_oauthbearer_listener_requires_keys_at_start() -> None:
    configs = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "OAUTHBEARER"}
    with pytest.raises(Exception, match="public keys"):
        Cluster(configs=configs).start()
    with (
        Cluster(configs=configs, allow_unsigned_tokens=True, topics=["orders:1"]) as lax,
        client(lax, unsigned(exp=int(time.time()) + 600, iat=None)) as anybody,
    ):
        assert anybody.topics()
