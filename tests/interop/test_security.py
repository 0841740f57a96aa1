"""Authentication and ACLs: Java and Go clients on ottla, ottla's client and commands on Apache Kafka."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
import subprocess
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet
from typer.testing import CliRunner

from ottla.cli import build
from ottla.client import Client
from ottla.client.access import AclFilter, create_acls, delete_acls, list_acls, list_users, set_password
from ottla.client.auth import Login, Security
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k38_create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from ottla.security.dev_tls import Authority, write_private
from ottla.testing import Cluster
from ottla.testing.security import AUTHORIZER, allow

from .java_client import JavaClients, KafkaClientError, Record
from .test_franz_go import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop

USERS = {"alice": "alice-secret", "bob": "bob-secret", "admin": "admin-secret"}
ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 300  # a guard


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority()
    write_private(str(directory / "server.pem"), authority.server().pem)
    write_private(str(directory / "ca.pem"), authority.certificate_pem)
    alice = authority.client("alice", "Acme")
    write_private(str(directory / "alice.p12"), alice.pkcs12("alice-store", authority.identity.certificate))
    write_private(str(directory / "alice.pem"), alice.pem)
    return directory


@pytest.fixture(scope="module")
def cluster(certificates: Path) -> Iterator[Cluster]:
    plain = "PlainLoginModule required " + " ".join(f'user_{name}="{word}"' for name, word in USERS.items()) + ";"
    with Cluster(
        users=USERS,
        superusers=["admin"],
        topics=["orders:1"],
        acls=[
            *(allow(who, "all", topic="orders") for who in ("alice", "alice@acme")),
            *(allow(who, "read", group="billing", prefixed=True) for who in ("alice", "alice@acme")),
        ],
        configs={
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0,SSL://127.0.0.1:0",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": plain,
            "listener.name.ssl.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=(.*?),O=(.*)$/$1@$2/L",
            "ssl.keystore.location": str(certificates / "server.pem"),
            "ssl.truststore.location": str(certificates / "ca.pem"),
            "delegation.token.secret.key": "a secret of the cluster",
            "connections.max.reauth.ms": "3000",
        },
    ) as cluster:
        yield cluster


def address(cluster: Cluster, protocol: str) -> str:
    return f"localhost:{cluster.call(lambda broker: broker.nodes[1].endpoints[protocol].port)}"


def settings(protocol: str, mechanism: str | None, certificates: Path, *, name: str = "alice") -> dict[str, str]:
    settings = {"security.protocol": protocol}
    if mechanism is not None:
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        settings["sasl.mechanism"] = mechanism
        settings["sasl.jaas.config"] = (
            f'org.apache.kafka.common.security.{module} required username="{name}" password="{USERS[name]}";'
        )
    if protocol.endswith("SSL"):
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(certificates / "ca.pem")}
    if protocol == "SSL":
        settings |= {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(certificates / "alice.p12"),
            "ssl.keystore.password": "alice-store",
            "ssl.key.password": "alice-store",
        }
    return settings


MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
WAYS: list[tuple[str, str | None]] = [(p, m) for p in ("SASL_PLAINTEXT", "SASL_SSL") for m in MECHANISMS]
WAYS.append(("SSL", None))


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_java_clients_log_in(
    cluster: Cluster, java_clients: JavaClients, certificates: Path, protocol: str, mechanism: str | None
) -> None:
    config = settings(protocol, mechanism, certificates)
    value = f"{protocol} {mechanism}".encode()
    with java_clients.producer(address(cluster, protocol), **config) as producer:
        assert "error" not in producer.send([Record("orders", value)])[0]
    consumer_config = {**config, "group.id": f"billing-{protocol}-{mechanism}"}
    with java_clients.consumer(address(cluster, protocol), **consumer_config) as consumer:
        consumer.subscribe("orders")
        seen: list[bytes | None] = []
        while value not in seen:
            came = consumer.poll(timeout_ms=SECONDS * 1000)
            assert came, f"after {seen} nothing came in {SECONDS} s"
            seen += [record.value for record in came]


def test_unauthorized_java_client_is_refused(cluster: Cluster, java_clients: JavaClients, certificates: Path) -> None:
    config = settings("SASL_PLAINTEXT", "SCRAM-SHA-256", certificates, name="bob")
    with java_clients.producer(address(cluster, "SASL_PLAINTEXT"), **config) as producer:
        try:
            refusal = producer.send([Record("orders", b"not allowed")])[0]["error"]["name"]
        except KafkaClientError as error:
            refusal = error.name
        assert "AUTHORIZATION_FAILED" in refusal


def test_java_client_logs_in_with_delegation_token(
    cluster: Cluster, java_clients: JavaClients, certificates: Path
) -> None:
    login = Security(login=Login("SCRAM-SHA-256", "alice", USERS["alice"]))
    with Client(address(cluster, "SASL_PLAINTEXT"), timeout=SECONDS, security=login) as alice:
        # A session lasts three seconds there: who stood still for longer between login and question is hung up on.
        token = alice.retrying(
            lambda: alice.to_any(CreateDelegationTokenRequest(max_lifetime_ms=-1), CreateDelegationTokenResponse)
        )
    config = settings("SASL_PLAINTEXT", "SCRAM-SHA-256", certificates)
    config["sasl.jaas.config"] = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{token.token_id}" password="{base64.b64encode(token.hmac).decode()}" tokenauth="true";'
    )
    with java_clients.producer(address(cluster, "SASL_PLAINTEXT"), **config) as producer:
        assert "error" not in producer.send([Record("orders", b"by token")])[0]


def test_java_client_logs_in_with_unsigned_token(java_clients: JavaClients) -> None:
    configs = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "OAUTHBEARER"}
    with Cluster(configs=configs, topics=["orders:1"], allow_unsigned_tokens=True) as cluster:
        config = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="alice";',
        }
        with java_clients.producer(cluster.bootstrap, **config) as producer:
            assert "error" not in producer.send([Record("orders", b"by token")])[0]


def test_java_client_logs_in_with_signed_token(kafka_jvm: object, tmp_path: Path) -> None:
    """With Kafka's own login callback, which takes the token from a file; one of another issuer is refused."""
    key = ECKey.generate_key("P-256", {"kid": "one"})
    (tmp_path / "jwks.json").write_text(json.dumps(KeySet([key]).as_dict(private=False)))
    now = int(time.time())
    for name, issuer in (("good", "https://issuer.example"), ("bad", "https://else.example")):
        claims = {"sub": "alice", "iss": issuer, "iat": now - 5, "exp": now + 3600, "scope": "kafka"}
        token = jwt.encode({"alg": "ES256", "kid": "one"}, claims, key, algorithms=["ES256"])
        (tmp_path / f"{name}.jwt").write_text(token)
    urls = {name: (tmp_path / f"{name}.jwt").as_uri() for name in ("good", "bad")}
    configs = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": (tmp_path / "jwks.json").as_uri(),
        "sasl.oauthbearer.expected.issuer": "https://issuer.example",
        "authorizer.class.name": AUTHORIZER,
    }
    package = "org.apache.kafka.common.security.oauthbearer"
    allowed = {"org.apache.kafka.sasl.oauthbearer.allowed.urls": ",".join(urls.values())}
    with (
        Cluster(configs=configs, topics=["orders:1"], acls=[allow("alice", "write", topic="orders")]) as cluster,
        JavaClients(properties=allowed) as clients,
    ):
        config = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f"{package}.OAuthBearerLoginModule required;",
            "sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
            "enable.idempotence": "false",
        }
        with clients.producer(
            cluster.bootstrap, **config, **{"sasl.oauthbearer.token.endpoint.url": urls["good"]}
        ) as producer:
            assert "error" not in producer.send([Record("orders", b"by a signed token")])[0]
        with (
            clients.producer(
                cluster.bootstrap, **config, **{"sasl.oauthbearer.token.endpoint.url": urls["bad"]}
            ) as producer,
            pytest.raises(KafkaClientError, match="another issuer"),
        ):
            producer.send([Record("orders", b"not taken")])
        assert [record.value for record in cluster.records("orders")] == [b"by a signed token"]


# franz-go


@pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")
@pytest.mark.parametrize("kind", ["256", "512"])
def test_franz_go_passes_its_own_scram_tests(cluster: Cluster, kind: str) -> None:
    suite = _kgo_suite()
    environment = {
        **os.environ,
        "KGO_SEEDS": address(cluster, "SASL_PLAINTEXT"),
        "KGO_TEST_SCRAM_SEEDS": address(cluster, "SASL_PLAINTEXT"),
        "KGO_TEST_SCRAM": f"alice:{USERS['alice']}:{kind}",
    }
    done = subprocess.run(
        [str(suite), "-test.v", "-test.run", "TestSCRAM", "-test.timeout", "30m"],
        cwd=suite.parent / "source" / "pkg" / "kgo",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    for test in ("TestSCRAMAuth", "TestSCRAMAuthBadCredentials"):
        assert f"--- PASS: {test} " in done.stdout


def _kgo_suite() -> Path:
    loader = SourceFileLoader("run_tests", str(ROOT / "tools" / "run_tests"))
    spec = importlib.util.spec_from_loader("run_tests", loader)
    assert spec is not None
    module: Any = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    try:
        return Path(module.build_suite(False, module.SUITE_VERSION, PATIENCE))
    except subprocess.CalledProcessError as problem:
        pytest.skip(f"franz-go cannot be built here: {problem}")


# Apache Kafka


@pytest.fixture(scope="module")
def kafka(kafka_jvm: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    from .apache_kafka import ApacheKafka

    node = ApacheKafka(
        tmp_path_factory.mktemp("secured-kafka") / "data",
        sasl=True,
        settings={"authorizer.class.name": AUTHORIZER, "super.users": "User:admin;User:ANONYMOUS"},
    )
    with node:
        yield node


def kafka_client(kafka: ApacheKafka, mechanism: str, name: str, password: str) -> Client:
    return Client(kafka.sasl_bootstrap, timeout=SECONDS, security=Security(login=Login(mechanism, name, password)))


def test_ottla_client_creates_kafka_user_and_logs_in(kafka: ApacheKafka) -> None:
    with kafka_client(kafka, "PLAIN", "admin", "admin-secret") as admin:
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            set_password(admin, "carol", "carol-secret", mechanism, 4096)
        admin.retrying(lambda: _known(admin, "carol"))
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert first_login(kafka, mechanism, "carol", "carol-secret") == []
        with kafka_client(kafka, mechanism, "carol", "wrong") as thief, pytest.raises(KafkaError) as caught:
            thief.topics()
        assert caught.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED


def first_login(kafka: ApacheKafka, mechanism: str, name: str, password: str) -> list[Any]:
    """The topics that a new user sees: a broker tells of a user a moment before it lets it in."""
    deadline = time.monotonic() + SECONDS
    while True:
        with kafka_client(kafka, mechanism, name, password) as client:
            try:
                return client.retrying(client.topics)
            except KafkaError as error:
                if error.code != ErrorCode.SASL_AUTHENTICATION_FAILED or time.monotonic() > deadline:
                    raise
        time.sleep(0.1)


def _known(admin: Client, name: str) -> None:
    if set(list_users(admin).get(name, {})) != {"SCRAM-SHA-256", "SCRAM-SHA-512"}:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "not known on the broker yet")


def test_ottla_client_changes_kafka_acls(kafka: ApacheKafka) -> None:
    entry = allow("dora", "read", topic="pay-", prefixed=True)
    expected = AclFilter(principal="User:dora")

    def expect(entries: list[object]) -> Callable[[], None]:
        def look() -> None:
            if list_acls(admin, expected) != entries:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "not known on the broker yet")

        return look

    with kafka_client(kafka, "PLAIN", "admin", "admin-secret") as admin:
        create_acls(admin, [entry])
        admin.retrying(expect([entry]))
        assert delete_acls(admin, expected) == [entry]
        admin.retrying(expect([]))
    with kafka_client(kafka, "PLAIN", "alice", "alice-secret") as alice, pytest.raises(KafkaError) as caught:
        create_acls(alice, [entry])
    assert caught.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_ottla_commands_work_on_kafka(kafka: ApacheKafka, tmp_path: Path) -> None:
    config = tmp_path / "admin.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=admin\nsasl.password=admin-secret\n"
    )
    app = build(["acl", "user", "quota"])

    def run(*words: str, text: str | None = None) -> str:
        where = ["-b", kafka.sasl_bootstrap, "--command-config", str(config), "--timeout", str(SECONDS)]
        done = CliRunner().invoke(app, [*words, *where], input=text)
        assert done.exit_code == 0, done.output
        return done.stdout

    run("acl", "add", "-p", "erik", "-o", "all", "--topic", "*", "--json")
    run("user", "set", "erik", "-m", "SCRAM-SHA-256", text="erik-secret\n")
    run("quota", "set", "-u", "erik", "producer_byte_rate=1000000")
    seen = json.dumps([run("acl", "list", "--json"), run("user", "list", "--json"), run("quota", "list", "--json")])
    assert "erik-secret" not in seen
    run("quota", "remove", "-u", "erik", "producer_byte_rate")
    run("acl", "remove", "-p", "erik", "--yes")
