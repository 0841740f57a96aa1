"""Which fields hold secrets: nobody who shows a message (an inspector, a log line) shows these."""

from __future__ import annotations

from typing import Final

SECRET_FIELDS: Final = frozenset({"auth_bytes", "hmac", "salt", "salted_password", "stored_key", "server_key"})
HIDDEN: Final = "(hidden)"
_SECRET_CONFIGS: Final = (".password", "sasl.jaas.config", ".secret", ".secret.key", "ssl.keystore.key", ".passphrase")


def is_secret_config(name: object) -> bool:
    """Whether the value of a config by this name is a password or a key, a listener's own one included."""
    return isinstance(name, str) and name.endswith(_SECRET_CONFIGS)
