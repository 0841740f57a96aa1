"""Files of `--dev-tls`: a temporary CA, a server certificate and client properties, removed at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DevTls:
    """A directory with the CA's certificate, the server's key and certificate, and client properties."""

    directory: str

    @property
    def authority(self) -> str:
        """The CA certificate that clients must trust."""
        return os.path.join(self.directory, "ca.pem")

    @property
    def client_properties(self) -> str:
        """The client properties file, for --command-config of Kafka's tools and ottla's."""
        return os.path.join(self.directory, "client.properties")

    @property
    def configs(self) -> dict[str, str]:
        """The listener's `ssl.*` configs."""
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": os.path.join(self.directory, "server.pem")}

    def remove(self) -> None:
        """Delete the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)


def make_dev_tls() -> DevTls:
    """Create a CA and a certificate for this machine; raise ValueError if `cryptography` is not installed."""
    try:
        from ottla.security.dev_tls import Authority, write_private
    except ImportError:
        raise ValueError("--dev-tls requires the package cryptography: pip install 'ottla[security]'") from None
    made = DevTls(tempfile.mkdtemp(prefix="ottla-dev-tls-"))
    authority = Authority()
    write_private(os.path.join(made.directory, "server.pem"), authority.server().pem)
    with open(made.authority, "wb") as file:
        file.write(authority.certificate_pem)
    with open(made.client_properties, "w", encoding="ascii") as file:
        file.write(f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={made.authority}\n")
    return made
