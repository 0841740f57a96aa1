"""A throw-away certificate authority for `ottla serve --dev-tls` and for tests. Not for production."""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence

DAYS = 30


@dataclass(frozen=True, slots=True, repr=False)
class Identity:
    """A private key and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        """Return key and certificate as PEM."""
        return self.key_pem + self.certificate_pem

    @property
    def key_pem(self) -> bytes:
        """Return the key as PEM."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def certificate_pem(self) -> bytes:
        """Return the certificate as PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def pkcs12(self, password: str, authority: x509.Certificate | None = None) -> bytes:
        """Return key and certificate as a PKCS12 store."""
        return pkcs12.serialize_key_and_certificates(
            b"ottla",
            self.key,
            self.certificate,
            None if authority is None else [authority],
            serialization.BestAvailableEncryption(password.encode()),
        )


class Authority:
    """Signs certificates of servers and clients that are valid for a few days."""

    def __init__(self, name: str = "ottla throw-away CA", days: int = DAYS) -> None:
        self._days = days
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, subject, key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(sign=True), critical=True)
        self.identity = Identity(key, builder.sign(key, hashes.SHA256()))

    @property
    def certificate_pem(self) -> bytes:
        """Return the certificate that clients have to trust, as PEM."""
        return self.identity.certificate_pem

    def server(self, hosts: Sequence[str] = ("localhost", "127.0.0.1", "::1"), name: str = "localhost") -> Identity:
        """Return a certificate for a broker with these host names and addresses."""
        return self._issue([(NameOID.COMMON_NAME, name)], ExtendedKeyUsageOID.SERVER_AUTH, hosts)

    def client(self, name: str, organization: str | None = None) -> Identity:
        """Return a certificate for a client."""
        subject = [(NameOID.COMMON_NAME, name)]
        if organization is not None:
            subject.insert(0, (NameOID.ORGANIZATION_NAME, organization))
        return self._issue(subject, ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def _issue(
        self, subject: Sequence[tuple[x509.ObjectIdentifier, str]], usage: x509.ObjectIdentifier, hosts: Sequence[str]
    ) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.Name([x509.NameAttribute(oid, value) for oid, value in subject])
        builder = self._builder(names, self.identity.certificate.subject, key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(sign=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False
            )
        return Identity(key, builder.sign(self.identity.key, hashes.SHA256()))

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=self._days))
        )


def write_private(path: str, data: bytes) -> None:
    """Write a file that only its owner can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def _key_usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign,
        crl_sign=sign,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
