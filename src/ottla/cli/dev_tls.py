"""What `ottla serve --dev-tls` leaves for clients: a throw-away CA, gone when the broker stops."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DevTls:
    """A directory with the CA's certificate, the broker's key, and a client's properties."""

    directory: str

    @property
    def authority(self) -> str:
        """The certificate that clients have to trust."""
        return os.path.join(self.directory, "ca.pem")

    @property
    def client_properties(self) -> str:
        """Properties for Kafka's tools, and for ottla's --command-config."""
        return os.path.join(self.directory, "client.properties")

    @property
    def configs(self) -> dict[str, str]:
        """What the broker needs to know."""
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": os.path.join(self.directory, "server.pem")}

    def remove(self) -> None:
        """Throw it away."""
        shutil.rmtree(self.directory, ignore_errors=True)


def make_dev_tls() -> DevTls:
    """Make a CA and a certificate for this machine; ValueError without the package that can."""
    try:
        from ottla.security.dev_tls import Authority, write_private
    except ImportError:
        raise ValueError("--dev-tls needs the package cryptography: pip install 'ottla[security]'") from None
    made = DevTls(tempfile.mkdtemp(prefix="ottla-dev-tls-"))
    authority = Authority()
    write_private(os.path.join(made.directory, "server.pem"), authority.server().pem)
    with open(made.authority, "wb") as file:
        file.write(authority.certificate_pem)
    with open(made.client_properties, "w", encoding="ascii") as file:
        file.write(f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={made.authority}\n")
    return made
