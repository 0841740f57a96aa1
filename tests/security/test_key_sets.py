"""The issuer's keys over HTTP: download, caching, refresh; and an issuer that is slow, missing or hostile."""

from __future__ import annotations

import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey

from ottla.client import Client
from ottla.client.auth import Login, Security
from ottla.protocol.errors import KafkaError
from ottla.security import tokens
from ottla.security.dev_tls import Authority, write_private
from ottla.security.sasl.mechanism import SaslError
from ottla.security.tokens import TokenRules, TokenValidator, read_key_set
from ottla.testing import Cluster
from tests.testing.clients import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("security tokens")

FIRST = ECKey.generate_key("P-256", {"kid": "first"})
SECOND = RSAKey.generate_key(2048, {"kid": "second"})


def key_set(*keys: Any) -> bytes:
    return json.dumps(KeySet(list(keys)).as_dict(private=False)).encode()


def token(key: Any, *, name: str | None = None, algorithm: str | None = None) -> str:
    now = int(time.time())
    algorithm = algorithm or ("ES256" if isinstance(key, ECKey) else "RS256")
    header = {"alg": algorithm} | ({} if name is None else {"kid": name})
    return jwt.encode(header, {"sub": "alice", "iat": now, "exp": now + 600}, key, algorithms=[algorithm])


class Issuer:
    """A web server whose page or behaviour a test chooses."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.page = key_set(FIRST)
        self.status = 200
        self.location: str | None = None
        self.asked = 0
        self.open = threading.Event()
        self.open.set()
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                issuer.open.wait(60)
                self.send_response(302 if issuer.location and self.path != "/there" else issuer.status)
                if issuer.location and self.path != "/there":
                    self.send_header("Location", issuer.location)
                self.end_headers()
                self.wfile.write(issuer.page)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://localhost:{self._server.server_address[1]}/keys"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.open.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(autouse=True)
def _directly_and_with_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(tokens, "FETCH_SECONDS", 60)


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Issuer]:
    authority = Authority()
    write_private(str(tmp_path / "server.pem"), authority.server().pem)
    write_private(str(tmp_path / "ca.pem"), authority.certificate_pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(tmp_path / "server.pem"))
    made = Issuer(context)
    yield made
    made.close()


# Downloads


def test_keys_are_downloaded(issuer: Issuer) -> None:
    assert [key["kid"] for key in read_key_set(issuer.url)["keys"]] == ["first"]


def test_keys_are_downloaded_from_trusted_https_issuer(secured: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [key["kid"] for key in read_key_set(secured.url)["keys"]] == ["first"]
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(ValueError, match="CERTIFICATE_VERIFY_FAILED"):
        read_key_set(secured.url)


def test_redirect_from_https_to_http_is_refused(issuer: Issuer, secured: Issuer) -> None:
    issuer.location = issuer.url.replace("/keys", "/there")
    assert read_key_set(issuer.url)["keys"]
    issuer.location = issuer.url
    with pytest.raises(ValueError, match="redirect"):  # a redirect loop
        read_key_set(issuer.url)
    issuer.location = "file:///etc/passwd"
    with pytest.raises(ValueError, match="not allowed"):
        read_key_set(issuer.url)
    secured.location = issuer.url.replace("/keys", "/there")
    with pytest.raises(ValueError, match="redirects from https to http"):
        read_key_set(secured.url)


@pytest.mark.parametrize(
    "page",
    [
        *(b"", b"<html>", b"{", b"[]", b"null", b'{"keys": 7}', b'{"keys": []}', b'{"keys": [1, "a"]}', b"\xff\xfe\0"),
        b"[" * 100_000,
        b" " * (tokens.LARGEST_KEY_SET + 1),
    ],
    ids=lambda page: repr(page[:12]),
)
def test_invalid_key_set_is_refused(issuer: Issuer, page: bytes) -> None:
    issuer.page = page
    with pytest.raises(ValueError, match="keys"):
        read_key_set(issuer.url)


def test_http_error_and_missing_server_are_reported(issuer: Issuer) -> None:
    issuer.status = 503
    with pytest.raises(ValueError, match="503"):
        read_key_set(issuer.url)
    issuer.close()
    with pytest.raises(ValueError, match="cannot be read"):
        read_key_set(issuer.url)


def test_download_times_out(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "FETCH_SECONDS", 0.2)
    issuer.open.clear()
    with pytest.raises(ValueError, match="cannot be read"):
        read_key_set(issuer.url)


# Verification with the keys


def validator(*keys: Any, more: Any = ()) -> TokenValidator:
    result = {"keys": [*KeySet(list(keys)).as_dict(private=False)["keys"], *more]}
    return TokenValidator(TokenRules(), result, lambda: int(time.time() * 1000))


def test_token_without_key_id_is_verified_with_all_keys() -> None:
    for key in (FIRST, SECOND):
        assert validator(FIRST, SECOND)(token(key)).principal == "User:alice"
    with pytest.raises(SaslError, match="signature"):
        validator(FIRST)(token(ECKey.generate_key("P-256")))


def test_unknown_and_broken_keys_are_ignored() -> None:
    strange = [{"kty": "AKP", "kid": "pq"}, {"kty": "RSA", "kid": "broken", "n": "!"}, {"kid": "nothing"}, {"kty": 7}]
    assert validator(FIRST, more=strange)(token(FIRST, name="first")).principal == "User:alice"
    for name in ("pq", "broken", "nothing"):
        with pytest.raises(SaslError, match="not known"):
            validator(FIRST, more=strange)(token(FIRST, name=name))


def test_symmetric_and_encryption_keys_are_ignored() -> None:
    shared = OctKey.generate_key(256, {"kid": "shared"})
    with pytest.raises(SaslError, match="algorithm"):
        validator(FIRST, more=[shared.as_dict()])(token(shared, name="shared", algorithm="HS256"))
    encrypting = {**SECOND.as_dict(private=False), "use": "enc"}
    with pytest.raises(SaslError, match="not known"):
        validator(FIRST, more=[encrypting])(token(SECOND, name="second"))


# A broker and its issuer


def served(issuer: Issuer, **configs: str) -> Cluster:
    return Cluster(
        topics=["orders"],
        configs={
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": issuer.url,
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "1",
            "connection.failed.authentication.delay.ms": "0",
            **configs,
        },
    )


def may_enter(cluster: Cluster, text: str) -> bool:
    security = Security(login=Login("OAUTHBEARER", token=text))
    try:
        with Client(cluster.bootstrap, timeout=60, security=security) as client:
            return [topic.name for topic in client.topics()] == ["orders"]
    except KafkaError:
        return False


def test_unknown_key_id_refreshes_keys(issuer: Issuer) -> None:
    with served(issuer) as cluster:
        for _ in range(3):
            assert may_enter(cluster, token(FIRST, name="first"))
        assert issuer.asked == 1
        issuer.page = key_set(SECOND)
        eventually(lambda: may_enter(cluster, token(SECOND, name="second")))
        assert not may_enter(cluster, token(FIRST, name="first")), "the issuer has withdrawn it"


def test_keys_are_refreshed_periodically(issuer: Issuer) -> None:
    settings = {"sasl.oauthbearer.jwks.endpoint.refresh.ms": "50"}
    with served(issuer, **settings) as cluster:
        eventually(lambda: issuer.asked > 2)
        issuer.page = key_set(SECOND)
        eventually(lambda: not may_enter(cluster, token(FIRST, name="first")))
        assert may_enter(cluster, token(SECOND, name="second"))


def test_old_keys_stay_while_issuer_fails(issuer: Issuer) -> None:
    with served(issuer, **{"sasl.oauthbearer.jwks.endpoint.refresh.ms": "20"}) as cluster:
        for page, status in ((b"<html>", 200), (b'{"keys": []}', 200), (key_set(FIRST), 500)):
            issuer.page, issuer.status = page, status
            before = issuer.asked
            eventually(lambda before=before: issuer.asked > before + 1)  # type: ignore[misc]
            assert may_enter(cluster, token(FIRST, name="first"))


def test_hanging_issuer_does_not_block_the_loop(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "FETCH_SECONDS", 600)
    with served(issuer) as cluster:
        issuer.open.clear()
        assert not may_enter(cluster, token(SECOND, name="second"))
        eventually(lambda: issuer.asked == 2)
        assert may_enter(cluster, token(FIRST, name="first"))
        node = cluster.add_node()
        assert node == 2
        assert may_enter(cluster, token(FIRST, name="first"))
        for number in range(20):
            assert not may_enter(cluster, token(SECOND, name=f"other-{number}"))
        assert issuer.asked == 2, "an unknown key asks the issuer, but not for each token"
        # closing does not wait for the issuer


def test_start_fails_without_issuer(issuer: Issuer) -> None:
    issuer.close()
    with pytest.raises(Exception, match="the keys of http"):
        served(issuer).start()
