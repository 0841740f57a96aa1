"""ApiVersions (18): the supported APIs and features.

v3 adds the client's software name and version and the cluster's features; v4 may report a feature with minimum version
0. Every response has header v0. An unknown version is answered by Dispatch with version 0 and UNSUPPORTED_VERSION
(KIP-511).
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from ottla.cluster.features import KRAFT_VERSION, supported_features
from ottla.handlers import access
from ottla.handlers.registry import api, apis
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k18_api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.protocol.releases import Release

FIRST_VERSION_WITH_LEAST_ZERO = 4
SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def on_error(_: ApiVersionsRequest, version: int, code: ErrorCode, message: str | None) -> ApiVersionsResponse:
    """Return the error; unknown versions never reach this handler."""
    return ApiVersionsResponse(error_code=code)


@api(18, versions=(0, 4), acl=access.EVERYBODY, on_error=on_error)
def api_versions(call: Call, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """List every API with its versions, and from v3 the features."""
    if call.version >= 3:
        for text in (request.client_software_name, request.client_software_version):
            if not SOFTWARE.fullmatch(text):
                raise KafkaError(ErrorCode.INVALID_REQUEST)
        call.session.software_name = request.client_software_name
        call.session.software_version = request.client_software_version
    release = call.broker.runtime.release
    response = ApiVersionsResponse(api_keys=_versions(release))
    if call.version >= 3:
        runtime = call.broker.runtime
        response.supported_features = _features(release, call.version >= FIRST_VERSION_WITH_LEAST_ZERO)
        response.finalized_features_epoch = runtime.metadata_offset
        finalized = dict(runtime.image.features)
        if runtime.metadata.kraft_version > 0:
            finalized[KRAFT_VERSION] = runtime.metadata.kraft_version
        response.finalized_features = [
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(finalized.items())
            if release is None or release.has_feature(name)
        ]
    return response


# Every connection starts with this request; these parts of the response never change and are made once.


@cache
def _versions(release: Release | None) -> list[ApiVersion]:
    return [
        ApiVersion(api_key=api.key, min_version=api.advertised[0], max_version=api.advertised[-1])
        for api in apis(release).values()
    ]


@cache
def _features(release: Release | None, least_zero: bool) -> list[SupportedFeatureKey]:
    return [
        SupportedFeatureKey(name=name, min_version=low, max_version=high)
        for name, (low, high) in supported_features().items()
        if (low > 0 or least_zero) and (release is None or release.has_feature(name))
    ]
