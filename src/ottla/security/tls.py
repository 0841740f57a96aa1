"""TLS contexts from Kafka's `ssl.*` settings: key and trust stores, client certificates, and principals from them.

Contexts are those of the standard library. `ottla.security.stores` converts other formats to PEM.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import re2  # type: ignore[import-untyped]

from ottla.security.stores import PEM, StoreError, key_and_chain, kind_of, trusted_certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
VERIFY: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
RULE: Final = re2.compile(r"(?s)\s*(DEFAULT)|\s*RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
SHORT_NAMES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
EMAIL_OID: Final = "1.2.840.113549.1.9.1"


class TlsError(ValueError):
    """Invalid `ssl.*` settings; the message names the setting."""


@dataclass(frozen=True, slots=True, repr=False)
class TlsSettings:
    """The `ssl.*` settings of one listener or client. They hold secrets, so `repr` hides them."""

    keystore_type: str | None = None
    keystore_location: str | None = None
    keystore_password: str | None = None
    key_password: str | None = None
    keystore_key: str | None = None
    keystore_chain: str | None = None
    truststore_type: str | None = None
    truststore_location: str | None = None
    truststore_password: str | None = None
    truststore_certificates: str | None = None
    client_auth: str = "none"
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    check_hostname: bool = True
    principal_mapping_rules: str = "DEFAULT"

    def __repr__(self) -> str:
        return f"TlsSettings(keystore={self.keystore_location}, truststore={self.truststore_location})"

    @classmethod
    def read(cls, value: Callable[[str], Any]) -> TlsSettings:
        """Read the settings with `value(name)`; a missing one is None."""

        def text(name: str) -> str | None:
            configured = value(name)
            return configured if isinstance(configured, str) and configured else None

        def several(name: str) -> tuple[str, ...]:
            configured = value(name) or ()
            if isinstance(configured, str):
                configured = tuple(part.strip() for part in configured.split(",") if part.strip())
            return tuple(configured)

        algorithm = value("ssl.endpoint.identification.algorithm")
        return cls(
            keystore_type=text("ssl.keystore.type"),
            keystore_location=text("ssl.keystore.location"),
            keystore_password=text("ssl.keystore.password"),
            key_password=text("ssl.key.password"),
            keystore_key=text("ssl.keystore.key"),
            keystore_chain=text("ssl.keystore.certificate.chain"),
            truststore_type=text("ssl.truststore.type"),
            truststore_location=text("ssl.truststore.location"),
            truststore_password=text("ssl.truststore.password"),
            truststore_certificates=text("ssl.truststore.certificates"),
            client_auth=text("ssl.client.auth") or "none",
            protocols=several("ssl.enabled.protocols") or ("TLSv1.2", "TLSv1.3"),
            cipher_suites=several("ssl.cipher.suites"),
            check_hostname=algorithm is None or str(algorithm).lower() == "https",
            principal_mapping_rules=text("ssl.principal.mapping.rules") or "DEFAULT",
        )

    @property
    def files(self) -> list[str]:
        """Return the files of key store and trust store."""
        return [path for path in (self.keystore_location, self.truststore_location) if path is not None]

    def stamps(self) -> list[tuple[str, int, int]]:
        """Return modification stamps of the files, to notice changes."""
        stamps = []
        for path in self.files:
            try:
                stat = os.stat(path)
            except OSError:
                stamps.append((path, 0, -1))
            else:
                stamps.append((path, stat.st_mtime_ns, stat.st_size))
        return stamps


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return a context for a listener."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_versions(context, settings)
    if not load_key(context, settings):
        raise TlsError("ssl.keystore.location: a TLS listener needs a private key and a certificate")
    try:
        context.verify_mode = VERIFY[settings.client_auth.lower()]
    except KeyError:
        raise TlsError(f"ssl.client.auth: {settings.client_auth} is not none, requested or required") from None
    if context.verify_mode is not ssl.CERT_NONE and not _load_trust(context, settings):
        raise TlsError("ssl.truststore.location: certificates of clients can only be checked with a trust store")
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return a context for a client; without a trust store the system's certificates are trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_versions(context, settings)
    context.check_hostname = settings.check_hostname
    if not _load_trust(context, settings):
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    load_key(context, settings)
    return context


def _set_versions(context: ssl.SSLContext, settings: TlsSettings) -> None:
    unknown = [name for name in settings.protocols if name not in VERSIONS]
    if unknown:
        raise TlsError(f"ssl.enabled.protocols: {', '.join(unknown)} is not served, only {', '.join(VERSIONS)}")
    versions = sorted(VERSIONS[name] for name in settings.protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    # TLS 1.3 suites have the same names in Java and OpenSSL; for TLS 1.2 OpenSSL's names are used.
    older = [name for name in settings.cipher_suites if not name.startswith("TLS_AES") and "CHACHA20" not in name]
    if older:
        try:
            context.set_ciphers(":".join(older))
        except ssl.SSLError as error:
            raise TlsError(f"ssl.cipher.suites: none of {', '.join(older)} is known to OpenSSL") from error


def load_key(context: ssl.SSLContext, settings: TlsSettings) -> bool:
    """Load private key and certificates into a context; return False if the settings name none."""
    if settings.keystore_key is not None:
        if settings.keystore_chain is None:
            raise TlsError("ssl.keystore.certificate.chain: ssl.keystore.key needs it")
        data = f"{settings.keystore_key}\n{settings.keystore_chain}\n".encode()
        _load_pem(context, data, settings.key_password, "ssl.keystore.key")
        return True
    location = settings.keystore_location
    if location is None:
        return False
    data = _read(location, "ssl.keystore.location")
    kind = kind_of(settings.keystore_type, data)
    key_password = settings.key_password
    if kind != PEM:
        try:
            data, key_password = key_and_chain(kind, data, settings.keystore_password, key_password)
        except StoreError as error:
            raise TlsError(f"ssl.keystore.location: {location}: {error}") from None
    _load_pem(context, data, key_password, "ssl.keystore.location")
    return True


def _load_pem(context: ssl.SSLContext, data: bytes, password: str | None, setting: str) -> None:
    import tempfile  # the standard library loads certificates from files only

    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        # Without a password OpenSSL would prompt on the terminal.
        context.load_cert_chain(path, password=password or (lambda: b""))
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise TlsError(f"{setting}: no private key with a certificate could be read ({reason})") from None
    finally:
        os.unlink(path)


def _load_trust(context: ssl.SSLContext, settings: TlsSettings) -> bool:
    if settings.truststore_certificates is not None:
        text = settings.truststore_certificates
    elif settings.truststore_location is not None:
        data = _read(settings.truststore_location, "ssl.truststore.location")
        kind = kind_of(settings.truststore_type, data)
        try:
            text = (
                data.decode("ascii", "replace")
                if kind == PEM
                else trusted_certificates(kind, data, settings.truststore_password)
            )
        except StoreError as error:
            raise TlsError(f"ssl.truststore.location: {settings.truststore_location}: {error}") from None
    else:
        return False
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        raise TlsError("ssl.truststore.location: no certificates could be read") from None
    return True


def _read(path: str, setting: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise TlsError(f"{setting}: {path}: {error.strerror}") from None


# Principals from certificates


def distinguished_name(certificate: Mapping[str, Any]) -> str:
    """Return the subject of a certificate as Java prints it (RFC 2253): most specific part first, no spaces."""
    names = reversed(certificate.get("subject", ()))
    return ",".join("+".join(_attribute(name, value) for name, value in relative) for relative in names)


def _attribute(name: str, value: str) -> str:
    if name == "emailAddress":
        raw = value.encode("ascii", "replace")
        return f"{EMAIL_OID}=#16{len(raw):02x}{raw.hex()}"
    escaped = "".join(f"\\{character}" if character in ',+"\\<>;=' else character for character in value)
    if escaped.startswith(("#", " ")):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and not escaped.endswith("\\ "):
        escaped = escaped[:-1] + "\\ "
    return f"{SHORT_NAMES.get(name, name)}={escaped}"


@dataclass(slots=True)
class PrincipalMapper:
    """Applies `ssl.principal.mapping.rules`: the first rule that matches the whole name decides."""

    rules: str = "DEFAULT"
    _parsed: list[tuple[Any, str, str]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        position, text = 0, self.rules.strip()
        while position < len(text):
            match = RULE.match(text, position)
            if match is None:
                raise TlsError(
                    f"ssl.principal.mapping.rules: {text[position:]!r} is neither DEFAULT nor RULE:pattern/replacement/"
                )
            position = match.end()
            if match.group(1):
                self._parsed.append((None, "", ""))
            else:
                pattern, replacement, case = (group or "" for group in match.group(2, 3, 4))
                try:
                    compiled = re2.compile(pattern.replace("\\/", "/"))
                except re2.error as error:
                    raise TlsError(f"ssl.principal.mapping.rules: {pattern!r} is no pattern: {error}") from None
                self._parsed.append((compiled, replacement, case))
            rest = text[position:].lstrip()
            if rest and not rest.startswith(","):
                raise TlsError("ssl.principal.mapping.rules: rules have commas between them")
            position = len(text) - len(rest) + 1 if rest else len(text)

    def principal(self, name: str) -> str:
        """Return the principal of a distinguished name; the name itself if no rule matches."""
        for compiled, replacement, case in self._parsed:
            if compiled is None:
                return name
            match = compiled.fullmatch(name)
            if match is None:
                continue
            result = _substitute(replacement, match)
            return result.lower() if case == "L" else result.upper() if case == "U" else result
        raise TlsError(f"no rule of ssl.principal.mapping.rules applies to {name}")


def _substitute(replacement: str, match: Any) -> str:
    result, index = [], 0
    while index < len(replacement):
        char = replacement[index]
        if char == "\\" and index + 1 < len(replacement):
            result.append(replacement[index + 1])
            index += 2
        elif char == "$" and index + 1 < len(replacement) and replacement[index + 1].isdigit():
            result.append(match.group(int(replacement[index + 1])) or "")
            index += 2
        else:
            result.append(char)
            index += 1
    return "".join(result)
