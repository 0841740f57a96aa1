"""Configs as a test writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def config_texts(configs: Mapping[str, Any]) -> dict[str, str]:
    """Configs as texts, as Kafka has them, where a test has written numbers and booleans."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in configs.items()}
