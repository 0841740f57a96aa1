"""ACLs, quotas, SCRAM credentials, delegation tokens and features: errors and written records."""

from __future__ import annotations

import pytest

from ottla.cluster.configs.effective import BrokerLayers
from ottla.cluster.feature_changes import update_features
from ottla.cluster.features import bootstrap_features, supported_features
from ottla.cluster.image import ClusterImage
from ottla.cluster.security.acls import create_acls, delete_acls, matching_acls
from ottla.cluster.security.client_quotas import alter_client_quotas
from ottla.cluster.security.delegation_tokens import (
    TokenRules,
    create_token,
    expire_token,
    find_token,
    renew_token,
    sweep_expired_tokens,
    token_hmac,
)
from ottla.cluster.security.scram import alter_scram_credentials, credential_from_password
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k30_create_acls import AclCreation
from ottla.protocol.messages.k31_delete_acls import DeleteAclsFilter
from ottla.protocol.messages.k49_alter_client_quotas import EntityData, OpData, RequestEntryData
from ottla.protocol.messages.k51_alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.messages.k57_update_features import FeatureUpdateKey
from ottla.protocol.record_schemas.metadata import ConfigRecord, FeatureLevelRecord
from ottla.world.random import SeededRandom


@pytest.fixture
def image() -> ClusterImage:
    image = ClusterImage()
    for name, level in bootstrap_features().items():
        image.replay(FeatureLevelRecord(name=name, feature_level=level))
    return image


# ACLs


def acl(**changed: object) -> AclCreation:
    fields: dict[str, object] = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:u",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
        **changed,
    }
    return AclCreation(**fields)


def acl_filter(**changed: object) -> DeleteAclsFilter:
    fields: dict[str, object] = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
        **changed,
    }
    return DeleteAclsFilter(**fields)


def test_existing_acl_writes_nothing(image: ClusterImage) -> None:
    results, records = create_acls(image, [acl(), acl(), acl(operation=4)], random=SeededRandom(1))
    assert results == [None, None, None]
    assert len(records) == 2
    image.replay_all(records)
    assert create_acls(image, [acl()], random=SeededRandom(2)) == ([None], [])


@pytest.mark.parametrize(
    ("creation", "message"),
    [
        (acl(resource_type=1), "Invalid resourceType ANY"),
        (acl(resource_type=99), "Invalid resourceType UNKNOWN"),
        (acl(resource_pattern_type=2), "Invalid patternType MATCH"),
        (acl(operation=1), "Invalid operation ANY"),
        (acl(permission_type=0), "Invalid permissionType UNKNOWN"),
        (acl(resource_name=""), "Invalid empty resource name"),
        (acl(resource_type=4, resource_name="x"), "The only valid name for the CLUSTER resource is kafka-cluster"),
        (
            acl(principal="nobody"),
            "Could not parse principal from `nobody` (no colon is present separating the principal type from the "
            "principal name)",
        ),
    ],
)
def test_acl_with_filter_elements_is_refused(image: ClusterImage, creation: AclCreation, message: str) -> None:
    results, records = create_acls(image, [creation], random=SeededRandom(1))
    assert results[0] is not None
    assert (results[0].code, results[0].message, records) == (ErrorCode.INVALID_REQUEST, message, [])


def test_acl_filter_matches_as_in_kafka(image: ClusterImage) -> None:
    entries = [
        acl(resource_name="orders"),
        acl(resource_name="ord", resource_pattern_type=4),
        acl(resource_name="*"),
        acl(resource_name="other"),
        acl(resource_type=3, resource_name="orders"),
    ]
    image.replay_all(create_acls(image, entries, random=SeededRandom(1))[1])

    def matching(**changed: object) -> list[tuple[int, str]]:
        return [(entry.resource_type, entry.resource_name) for _, entry in matching_acls(image, acl_filter(**changed))]

    assert len(matching()) == 5
    assert matching(resource_type_filter=2, resource_name_filter="orders") == [(2, "orders")]
    assert matching(resource_type_filter=2, resource_name_filter="orders", pattern_type_filter=2) == [
        (2, "orders"),
        (2, "ord"),
        (2, "*"),
    ]
    assert matching(pattern_type_filter=4) == [(2, "ord")]
    assert matching(principal_filter="User:x") == []


def test_acls_are_deleted_by_filter(image: ClusterImage) -> None:
    image.replay_all(create_acls(image, [acl(), acl(resource_name="u")], random=SeededRandom(1))[1])
    results, records = delete_acls(image, [acl_filter(resource_name_filter="u"), acl_filter(operation=0)])
    assert isinstance(results[0], list)
    assert [result.resource_name for result in results[0]] == ["u"]
    assert isinstance(results[1], KafkaError)
    image.replay_all(records)
    assert [entry.resource_name for entry in image.acls.values()] == ["t"]


# quotas


def quota(parts: dict[str, str | None], **ops: float | None) -> RequestEntryData:
    return RequestEntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in parts.items()],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops.items()],
    )


def test_quotas_are_set_changed_and_removed(image: ClusterImage) -> None:
    alice = (("client-id", "c"), ("user", "alice"))
    for value, expected in ((5.0, 1), (5.0, 0), (6.0, 1)):
        entry = quota({"user": "alice", "client-id": "c"}, producer_byte_rate=value)
        records = alter_client_quotas(image, [entry])[1]
        assert len(records) == expected
        image.replay_all(records)
    assert image.client_quotas == {alice: {"producer_byte_rate": 6.0}}
    image.replay_all(alter_client_quotas(image, [quota(dict(alice), producer_byte_rate=None)])[1])
    assert image.client_quotas == {}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (quota({}), "Invalid empty client quota entity"),
        (quota({"user": ""}), "Empty user not supported"),
        (quota({"shoe": "x"}), "Unhandled client quota entity type: shoe"),
        (
            quota({"ip": "1.2.3.4", "user": "u"}),
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",
        ),
        (quota({"ip": "not an address"}), "not an address is not a valid IP or resolvable host."),
        (quota({"user": "u"}, nope=1.0), "Invalid configuration key nope"),
        (quota({"ip": None}, producer_byte_rate=1.0), "Invalid configuration key producer_byte_rate"),
        (quota({"user": "u"}, producer_byte_rate=-1.0), "Quota producer_byte_rate must be greater than 0"),
        (quota({"user": "u"}, producer_byte_rate=1.5), "producer_byte_rate cannot be a fractional value."),
        (
            quota({"ip": None}, connection_creation_rate=3e9),
            "Proposed value for connection_creation_rate is too large for an INT.",
        ),
        (quota({"user": "u"}, request_percentage=float("nan")), "Quota request_percentage must be greater than 0"),
    ],
)
def test_invalid_quotas_are_refused(image: ClusterImage, entry: RequestEntryData, message: str) -> None:
    results, records = alter_client_quotas(image, [entry])
    assert results[0] is not None
    assert (results[0].code, results[0].message, records) == (ErrorCode.INVALID_REQUEST, message, [])


# SCRAM


def upsert(user: str, mechanism: int = 1, iterations: int = 4096) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=user, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=b"salted"
    )


def test_password_becomes_keys_of_rfc_7677() -> None:
    # The example of RFC 7677: user "user", password "pencil".
    import base64

    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = credential_from_password(1, b"pencil", salt, 4096)
    assert base64.b64encode(credential.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(credential.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="


def test_credentials_are_set_and_removed(image: ClusterImage) -> None:
    request = AlterUserScramCredentialsRequest(upsertions=[upsert("a"), upsert("b", 2)])
    results, records = alter_scram_credentials(image, request)
    assert [(result.user, result.error_code) for result in results] == [("a", 0), ("b", 0)]
    image.replay_all(records)
    request = AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion(name="a", mechanism=1)])
    image.replay_all(alter_scram_credentials(image, request)[1])
    assert {mechanism: list(users) for mechanism, users in image.scram.items()} == {2: ["b"]}


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (AlterUserScramCredentialsRequest(upsertions=[upsert("")]), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (AlterUserScramCredentialsRequest(upsertions=[upsert("a", 9)]), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (AlterUserScramCredentialsRequest(upsertions=[upsert("a", 1, 4095)]), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (AlterUserScramCredentialsRequest(upsertions=[upsert("a", 1, 16385)]), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (AlterUserScramCredentialsRequest(upsertions=[upsert("a"), upsert("a", 2)]), ErrorCode.DUPLICATE_RESOURCE),
        (
            AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion(name="a", mechanism=1)]),
            ErrorCode.RESOURCE_NOT_FOUND,
        ),
    ],
)
def test_invalid_credential_changes_are_refused(
    image: ClusterImage, request_: AlterUserScramCredentialsRequest, code: ErrorCode
) -> None:
    results, records = alter_scram_credentials(image, request_)
    assert ([result.error_code for result in results], records) == ([code], [])


# tokens

RULES = TokenRules("key", 1000, 100)


def token(image: ClusterImage, **fields: object) -> bytes:
    arguments: dict[str, object] = {
        "requester": "User:r",
        "owner": None,
        "renewers": ["User:n"],
        "max_lifetime_ms": -1,
        "now_ms": 0,
        "random": SeededRandom(1),
        **fields,
    }
    made, records = create_token(image, RULES, **arguments)  # type: ignore[arg-type]
    image.replay_all(records)
    return token_hmac("key", made.token_id)


def test_token_expires_at_most_at_its_max_lifetime(image: ClusterImage) -> None:
    secret = token(image, max_lifetime_ms=300)
    stored = find_token(image, RULES, secret)
    assert stored is not None
    assert (stored.owner, stored.expiry_ms, stored.max_ms) == ("User:r", 100, 300)
    for now, expected in ((50, 150), (120, 220), (210, 300)):
        expiry, records = renew_token(image, RULES, secret, principal="User:n", period_ms=-1, now_ms=now)
        assert expiry == expected
        image.replay_all(records)
    assert sweep_expired_tokens(image, 300) == []
    image.replay_all(sweep_expired_tokens(image, 301))
    assert image.delegation_tokens == {}


def test_token_expires_at_once_or_after_period(image: ClusterImage) -> None:
    secret = token(image)
    expiry, records = expire_token(image, RULES, secret, principal="User:r", period_ms=40, now_ms=10)
    assert expiry == 50
    image.replay_all(records)
    expiry, records = expire_token(image, RULES, secret, principal="User:r", period_ms=-1, now_ms=20)
    assert expiry == 20
    image.replay_all(records)
    assert image.delegation_tokens == {}


def test_unusable_tokens_are_refused(image: ClusterImage) -> None:
    secret = token(image)
    off = TokenRules(None, 0, 0)
    cases = [
        (lambda: renew_token(image, off, secret, principal="User:r", period_ms=1, now_ms=1), "AUTH_DISABLED"),
        (lambda: renew_token(image, RULES, b"?", principal="User:r", period_ms=1, now_ms=1), "NOT_FOUND"),
        (lambda: renew_token(image, RULES, secret, principal="User:x", period_ms=1, now_ms=1), "OWNER_MISMATCH"),
        (lambda: renew_token(image, RULES, secret, principal="User:r", period_ms=1, now_ms=101), "EXPIRED"),
        (lambda: expire_token(image, RULES, secret, principal="User:r", period_ms=1, now_ms=101), "EXPIRED"),
    ]
    for attempt, code in cases:
        with pytest.raises(KafkaError) as caught:
            attempt()
        assert caught.value.code.name == f"DELEGATION_TOKEN_{code}"
    with pytest.raises(KafkaError) as caught:
        token(image, renewers=["Group:g"])
    assert caught.value.code is ErrorCode.INVALID_PRINCIPAL_TYPE


# features


def change(image: ClusterImage, name: str, level: int, kind: int = 1) -> None:
    update = FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
    image.replay_all(update_features(image, [update], node_id=1, kraft_version=1, layers=BrokerLayers()))


def test_feature_downgrade_and_upgrade(image: ClusterImage) -> None:
    change(image, "group.version", 0, 2)
    assert "group.version" not in image.features
    change(image, "group.version", 1)
    assert image.features["group.version"] == 1


def test_bootstrap_features_are_supported() -> None:
    supported = supported_features()
    for level in range(7, 31):
        for name, chosen in bootstrap_features(level).items():
            low, high = supported[name]
            assert low <= chosen <= high


def test_enabling_elr_sets_cluster_wide_min_isr(image: ClusterImage) -> None:
    change(image, "eligible.leader.replicas.version", 0, 2)
    image.replay(ConfigRecord(resource_type=4, resource_name="1", name="min.insync.replicas", value="2"))
    change(image, "eligible.leader.replicas.version", 1)
    assert {resource.name: configs for resource, configs in image.configs.items()} == {"": {"min.insync.replicas": "1"}}


@pytest.mark.parametrize(
    ("name", "level", "kind", "message"),
    [
        (
            "nope",
            1,
            1,
            "Invalid update version 1 for feature nope. Local controller 1 does not support this feature.",
        ),
        (
            "group.version",
            9,
            1,
            "Invalid update version 9 for feature group.version. Local controller 1 only supports versions 0-1",
        ),
        (
            "group.version",
            0,
            1,
            "Invalid update version 0 for feature group.version. Can't downgrade the version of this feature without "
            "setting the upgrade type to either safe or unsafe downgrade.",
        ),
        (
            "metadata.version",
            29,
            2,
            "Unsupported metadata.version downgrade from 30 to 29. Refusing to perform the requested downgrade because "
            "it might delete metadata information.",
        ),
        (
            "metadata.version",
            29,
            3,
            "Unsupported metadata.version downgrade from 30 to 29. Unsafe metadata downgrade is not supported in this "
            "version.",
        ),
    ],
)
def test_invalid_feature_levels_are_refused(
    image: ClusterImage, name: str, level: int, kind: int, message: str
) -> None:
    with pytest.raises(KafkaError) as caught:
        change(image, name, level, kind)
    assert (caught.value.code, caught.value.message) == (ErrorCode.INVALID_UPDATE_VERSION, message)
