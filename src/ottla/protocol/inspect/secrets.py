"""The fields that hold secrets, which inspectors and log lines must not show."""

from __future__ import annotations

from typing import Final

SECRET_FIELDS: Final = frozenset({"auth_bytes", "hmac", "salt", "salted_password", "stored_key", "server_key"})
HIDDEN: Final = "(hidden)"
_SECRET_CONFIGS: Final = (".password", "sasl.jaas.config", ".secret", ".secret.key", "ssl.keystore.key", ".passphrase")


def is_secret_config(name: object) -> bool:
    """Return whether a config of this name holds a password or key, with or without a listener prefix."""
    return isinstance(name, str) and name.endswith(_SECRET_CONFIGS)
