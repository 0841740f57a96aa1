"""UpdateFeatures (57): change finalized feature levels. v1 adds upgrade types and dry runs, v2 one error for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.feature_changes import SAFE_DOWNGRADE, UPGRADE
from ottla.cluster.feature_changes import update_features as plan
from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k57_update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call

ALL_FAILED = "The update failed for all features since the following feature had an error: "


def on_error(
    request: UpdateFeaturesRequest, version: int, code: ErrorCode, message: str | None
) -> UpdateFeaturesResponse:
    """Return the error."""
    return UpdateFeaturesResponse(error_code=code, error_message=message)


@api(57, versions=(0, 2), acl=access.cluster(AclOperation.ALTER), on_error=on_error)
def update_features(call: Call, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """Change all levels or none."""
    runtime = call.broker.runtime
    if call.version == 0:
        for update in request.feature_updates:
            update.upgrade_type = SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
    try:
        records = plan(
            runtime.image,
            request.feature_updates,
            node_id=runtime.controller.node_id,
            kraft_version=runtime.metadata.kraft_version,
            layers=runtime.controller.layers,
        )
    except KafkaError as error:
        raise KafkaError(error.code, f"{ALL_FAILED}{error.message}") from error
    if not request.validate_only:
        runtime.change(records)
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            UpdatableFeatureResult(feature=feature_update.feature, error_code=ErrorCode.NONE, error_message=None)
            for feature_update in request.feature_updates
        ],
    )
