"""Lists, creates and expires delegation tokens. Errors are KafkaErrors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.k38_create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from ottla.protocol.messages.k40_expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from ottla.protocol.messages.k41_describe_delegation_token import (
    DescribedDelegationToken,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.client.client import Client


def list_tokens(client: Client) -> list[DescribedDelegationToken]:
    """Return the tokens that the client's principal may see."""
    response = client.to_any(DescribeDelegationTokenRequest(owners=None), DescribeDelegationTokenResponse)
    if response.error_code:
        raise KafkaError(response.error_code, "delegation tokens")
    return response.tokens


def create_token(client: Client, renewers: Sequence[str] = (), max_lifetime_ms: int = -1) -> tuple[str, bytes]:
    """Create a token for the client's principal; return its id and its HMAC, which is the password."""
    request = CreateDelegationTokenRequest(
        renewers=[CreatableRenewers(principal_type="User", principal_name=name) for name in renewers],
        max_lifetime_ms=max_lifetime_ms,
    )
    response = client.to_controller(request, CreateDelegationTokenResponse)
    if response.error_code:
        raise KafkaError(response.error_code, "delegation token")
    return response.token_id, response.hmac


def expire_token(client: Client, hmac: bytes) -> None:
    """Expire a token at once."""
    request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=-1)
    response = client.to_controller(request, ExpireDelegationTokenResponse)
    if response.error_code:
        raise KafkaError(response.error_code, "delegation token")
