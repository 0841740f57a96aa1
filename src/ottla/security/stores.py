"""Converts Java's key and trust stores to PEM: PKCS12 and JKS.

`cryptography` is needed for keys and for PKCS12, and imported only here.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import ssl
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

PEM: Final = "PEM"
PKCS12: Final = "PKCS12"
JKS: Final = "JKS"

_JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"
_KEY, _TRUSTED = 1, 2
_LONG: Final = Struct(">i")
_SHORT: Final = Struct(">H")
_DIGEST: Final = 20
_SEQUENCE, _OCTETS = 0x30, 0x04
_WHITENER: Final = b"Mighty Aphrodite"  # the constant that Java adds to the digest of a store
_NEEDS_PACKAGE: Final = "stores in Java's formats need the package cryptography: pip install 'ottla[security]'"


class StoreError(ValueError):
    """A store that cannot be read, with the reason."""


def kind_of(declared: str | None, data: bytes) -> str:
    """Return the format of a store. JKS is Kafka's default; Java then detects PKCS12 from the file's contents."""
    if declared is not None and declared.upper() != JKS:
        return declared.upper()
    if data.startswith(_JKS_MAGIC):
        return JKS
    return PKCS12 if data[:1] == bytes([_SEQUENCE]) else PEM


def key_and_chain(kind: str, data: bytes, password: str | None, key_password: str | None) -> tuple[bytes, str]:
    """Return the private key and its certificates as PEM, and the password that encrypts the key there."""
    if kind == PKCS12:
        key, chain = _pkcs12_key(data, password)
    elif kind == JKS:
        key, chain = _jks_key(data, password, key_password)
    else:
        raise StoreError(f"{kind} cannot be read here; use PEM, PKCS12 or JKS")
    from cryptography.hazmat.primitives import serialization

    transit = os.urandom(16).hex()  # the key is written to disk only encrypted
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(transit.encode()),
    )
    return encrypted + "".join(chain).encode(), transit


def trusted_certificates(kind: str, data: bytes, password: str | None) -> str:
    """Return the certificates of a trust store as PEM."""
    if kind == JKS:
        return "".join(ssl.DER_cert_to_PEM_cert(certificate) for certificate in _JksStore(data, password).trusted)
    if kind != PKCS12:
        raise StoreError(f"{kind} cannot be read here; use PEM, PKCS12 or JKS")
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise StoreError(_NEEDS_PACKAGE) from None
    try:
        store = pkcs12.load_pkcs12(data, password.encode() if password else None)
    except ValueError:
        raise StoreError("the store cannot be opened with this password") from None
    certificates = [
        certificate.certificate for certificate in (store.cert, *store.additional_certs) if certificate is not None
    ]
    return "".join(certificate.public_bytes(serialization.Encoding.PEM).decode() for certificate in certificates)


def _pkcs12_key(data: bytes, password: str | None) -> tuple[PrivateKeyTypes, list[str]]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise StoreError(_NEEDS_PACKAGE) from None
    try:
        key, certificate, others = pkcs12.load_key_and_certificates(data, password.encode() if password else None)
    except ValueError:
        raise StoreError("the store cannot be opened with this password") from None
    if key is None or certificate is None:
        raise StoreError("the store holds no private key with a certificate")
    return key, [item.public_bytes(serialization.Encoding.PEM).decode() for item in (certificate, *others)]


# JKS: entries followed by a digest. Keys are encrypted with a stream of SHA-1 digests of password and salt.


class _JksStore:
    """The entries of a JKS file."""

    def __init__(self, data: bytes, password: str | None) -> None:
        self.trusted: list[bytes] = []
        self.keys: list[tuple[bytes, list[bytes]]] = []
        self._data = data
        self._position = len(_JKS_MAGIC)
        try:
            self._read()
        except (IndexError, ValueError) as error:
            raise StoreError("the store is damaged: it ends in the middle, or is no JKS of version 2") from error
        digest = hashlib.sha1(_wide(password or "") + _WHITENER + data[: self._position]).digest()
        # Java skips this check as well without a password.
        if password is not None and not hmac.compare_digest(digest, data[self._position :]):
            raise StoreError("the store cannot be opened with this password")

    def _read(self) -> None:
        if self._number(_LONG) != 2:
            raise ValueError
        for _ in range(self._number(_LONG)):
            tag = self._number(_LONG)
            self._text()  # the alias
            self._take(8)  # the creation time
            if tag == _KEY:
                key = self._take(self._number(_LONG))
                self.keys.append((key, [self._certificate() for _ in range(self._number(_LONG))]))
            elif tag == _TRUSTED:
                self.trusted.append(self._certificate())
            else:
                raise ValueError

    def _certificate(self) -> bytes:
        self._text()  # the certificate type, X.509
        return self._take(self._number(_LONG))

    def _text(self) -> bytes:
        return self._take(self._number(_SHORT))

    def _number(self, layout: Struct) -> int:
        return int(layout.unpack(self._take(layout.size))[0])

    def _take(self, count: int) -> bytes:
        start, end = self._position, self._position + count
        if not start <= end <= len(self._data):
            raise IndexError
        self._position = end
        return self._data[start:end]


def _jks_key(data: bytes, password: str | None, key_password: str | None) -> tuple[PrivateKeyTypes, list[str]]:
    store = _JksStore(data, password)
    if not store.keys:
        raise StoreError("the store holds no private key with a certificate")
    try:
        from cryptography.hazmat.primitives.serialization import load_der_private_key
    except ImportError:
        raise StoreError(_NEEDS_PACKAGE) from None
    hidden, chain = store.keys[0]
    try:
        private_key = load_der_private_key(_decrypt(_encrypted_bytes(hidden), key_password or password or ""), None)
    except (IndexError, ValueError):
        raise StoreError("the private key cannot be opened with this password (ssl.key.password)") from None
    return private_key, [ssl.DER_cert_to_PEM_cert(certificate) for certificate in chain]


def _decrypt(hidden: bytes, password: str) -> bytes:
    """Return a key that Java's key protector encrypted: a salt, the encrypted key, and a digest of the key."""
    secret = _wide(password)
    salt, body, check = hidden[:_DIGEST], hidden[_DIGEST:-_DIGEST], hidden[-_DIGEST:]
    stream, last = bytearray(), salt
    while len(stream) < len(body):
        last = hashlib.sha1(secret + last).digest()
        stream += last
    plain = bytes(one ^ other for one, other in zip(body, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + plain).digest(), check):
        raise ValueError("wrong password")
    return plain


def _encrypted_bytes(der: bytes) -> bytes:
    """Return the last field of an EncryptedPrivateKeyInfo: SEQUENCE { algorithm, OCTET STRING }."""
    body, _ = _element(der, 0, _SEQUENCE)
    _, after = _element(body, 0, _SEQUENCE)
    return _element(body, after, _OCTETS)[0]


def _element(der: bytes, position: int, tag: int) -> tuple[bytes, int]:
    """Return the contents of a DER element and the position after it."""
    if der[position] != tag:
        raise ValueError("not the element that was expected")
    length, start = der[position + 1], position + 2
    if length & 0x80:
        count = length & 0x7F
        length, start = int.from_bytes(der[start : start + count], "big"), start + count
    return der[start : start + length], start + length


def _wide(password: str) -> bytes:
    return password.encode("utf-16-be")
