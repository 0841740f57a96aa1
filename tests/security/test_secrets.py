"""Passwords, tokens and keys appear in no log line, event, decoded frame, dump or error message."""

from __future__ import annotations

import base64
import io
import json
import logging
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from ottla.cli import build
from ottla.client import Client
from ottla.client.access import list_users, set_password
from ottla.client.auth import Login, Security, security_from_properties
from ottla.cluster.server_config import ServerConfigError, parse_server_properties
from ottla.protocol.errors import KafkaError
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.k36_sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.messages.k38_create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from ottla.protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.k51_alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from ottla.security.sasl.plain import plain_token
from tests.security.clusters import USERS, secured

if TYPE_CHECKING:
    from pathlib import Path

PASSWORD = "correct-horse-battery-staple"
WRONG = "wrong-horse-battery-staple"
KEYSTORE_PASSWORD = "keystore-horse-battery"
CLUSTER_KEY = "cluster-horse-battery"


def forms(secret: str | bytes) -> list[str]:
    """Return the forms in which a secret could be written: raw, base64, hexadecimal."""
    raw = secret.encode() if isinstance(secret, str) else secret
    result = [base64.b64encode(raw).decode(), raw.hex()]
    return [secret, *result] if isinstance(secret, str) else result


def test_secrets_are_written_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    events = tmp_path / "events.jsonl"
    secrets: list[str | bytes] = [*USERS.values(), PASSWORD, WRONG, KEYSTORE_PASSWORD, CLUSTER_KEY]
    log_records: list[str] = []
    with secured(
        events=str(events),
        data_dir=str(tmp_path / "data"),
        configs={"delegation.token.secret.key": CLUSTER_KEY, "connection.failed.authentication.delay.ms": "0"},
    ) as cluster:
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            login = Login(mechanism, "admin", USERS["admin"])
            with Client(cluster.bootstrap, timeout=60, security=Security(login=login)) as admin:
                set_password(admin, "carol", PASSWORD, "SCRAM-SHA-256", 4096)
                assert "carol" in list_users(admin)
                token = admin.to_any(CreateDelegationTokenRequest(max_lifetime_ms=-1), CreateDelegationTokenResponse)
                secrets.append(token.hmac)
                log_records += [repr(admin), repr(login), repr(token)]
                change = AlterableConfig(name="listener.name.x.ssl.keystore.password", value=KEYSTORE_PASSWORD)
                resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[change])
                request = IncrementalAlterConfigsRequest(resources=[resource])
                response = admin.to_node(1, request, IncrementalAlterConfigsResponse)
                log_records += [repr(response), repr(request)]
            wrong = Security(login=Login(mechanism, "admin", WRONG))
            with Client(cluster.bootstrap, timeout=60, security=wrong) as thief, pytest.raises(KafkaError) as caught:
                thief.topics()
            log_records.append(str(caught.value))
        credentials = cluster.call(lambda broker: [c for entry in broker.image.scram.values() for c in entry.values()])
        secrets += [
            value
            for credential in credentials
            for value in (credential.salt, credential.stored_key, credential.server_key)
        ]
    dumped = CliRunner().invoke(
        build(["log"]), ["log", "dump", str(tmp_path / "data" / "__cluster_metadata-0"), "--records", "--json"]
    )
    assert dumped.exit_code == 0, dumped.output
    assert "UserScramCredential" in dumped.output, "the dump shows that they are there"
    written = "\n".join([caplog.text, events.read_text(), dumped.output, *log_records])
    for secret in secrets:
        for form in forms(secret):
            assert form not in written


@pytest.mark.parametrize("options", [["--no-hexdump"], ["--json"], ["--hexdump"]])
def test_decoded_frames_hide_secrets(options: list[str]) -> None:
    salted = b"salted-horse-battery"
    requests = [
        (36, 2, SaslAuthenticateRequest(auth_bytes=plain_token("alice", PASSWORD)), PASSWORD),
        (
            51,
            0,
            AlterUserScramCredentialsRequest(
                upsertions=[
                    ScramCredentialUpsertion(name="x", mechanism=1, iterations=4096, salt=b"s", salted_password=salted)
                ]
            ),
            salted.decode(),
        ),
        (
            44,
            1,
            IncrementalAlterConfigsRequest(
                resources=[
                    AlterConfigsResource(
                        resource_type=4,
                        resource_name="1",
                        configs=[AlterableConfig(name="sasl.jaas.config", value=KEYSTORE_PASSWORD)],
                    )
                ]
            ),
            KEYSTORE_PASSWORD,
        ),
    ]
    for key, version, request, secret in requests:
        frame = encode_request(key, version, 1, "x", request)
        result = CliRunner().invoke(build(["decode"]), ["decode", *options], input=frame.hex())
        assert result.exit_code == 0, result.output
        squeezed = result.output.replace(" ", "").replace("\n", "")
        for form in forms(secret):
            assert form not in result.output
            assert form not in squeezed


def test_config_errors_hide_secrets() -> None:
    text = f"node.id=1\nssl.keystore.password={KEYSTORE_PASSWORD}\nlisteners=NOTHING\n"
    with pytest.raises(ServerConfigError) as caught:
        parse_server_properties(text)
    assert KEYSTORE_PASSWORD not in str(caught.value)
    for properties in (
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.password": PASSWORD},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "X", "sasl.password": PASSWORD},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": f'X y password="{PASSWORD}"'},
    ):
        with pytest.raises(ValueError) as problem:
            security_from_properties(properties, {})
        assert PASSWORD not in str(problem.value)


def test_described_configs_hide_secrets() -> None:
    from ottla.protocol.messages.k32_describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
        DescribeConfigsResponse,
    )

    with secured(configs={"delegation.token.secret.key": CLUSTER_KEY}) as cluster:
        security = Security(login=Login("PLAIN", "admin", USERS["admin"]))
        with Client(cluster.bootstrap, timeout=60, security=security) as admin:
            resource = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
            response = admin.to_node(
                1, DescribeConfigsRequest(resources=[resource], include_synonyms=True), DescribeConfigsResponse
            )
    text = io.StringIO()
    json.dump(
        [[config.name, config.value, [s.value for s in config.synonyms]] for config in response.results[0].configs],
        text,
    )
    assert "delegation.token.secret.key" in text.getvalue()
    for secret in (CLUSTER_KEY, *USERS.values()):
        assert json.dumps(secret)[1:-1] not in text.getvalue()
