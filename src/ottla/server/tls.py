"""TLS of listeners: the context, its renewal when files or settings change, and principals of certificates."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ottla.cluster.configs.effective import listener_value
from ottla.security.tls import PrincipalMapper, TlsError, TlsSettings, distinguished_name, server_context

if TYPE_CHECKING:
    import ssl

    from ottla.cluster.configs.effective import BrokerLayers
    from ottla.cluster.server_config import Endpoint

log = logging.getLogger(__name__)

TLS_PROTOCOLS = ("SSL", "SASL_SSL")


class ListenerTls:
    """The TLS context of one listener. Raise TlsError if its settings cannot work."""

    def __init__(self, endpoint: Endpoint, layers: BrokerLayers) -> None:
        self.listener = endpoint.listener
        self.names_clients = endpoint.security_protocol == "SSL"
        self._settings = self._read(layers)
        self._stamps = self._settings.stamps()
        self.context = server_context(self._settings)
        self._mapper = PrincipalMapper(self._settings.principal_mapping_rules)

    def refreshed(self, layers: BrokerLayers) -> ssl.SSLContext | None:
        """Return a new context if files or settings changed and are valid; else None, and the old one stays."""
        settings = self._read(layers)
        stamps = settings.stamps()
        if settings == self._settings and stamps == self._stamps:
            return None
        self._stamps, self._settings = stamps, settings
        try:
            context = server_context(settings)
            mapper = PrincipalMapper(settings.principal_mapping_rules)
        except TlsError as error:
            log.error("listener %s keeps its old certificate: %s", self.listener, error)
            return None
        self.context, self._mapper = context, mapper
        log.info("listener %s has a new certificate", self.listener)
        return context

    def principal(self, certificate: dict[str, Any] | None) -> str | None:
        """Return the principal of a client certificate; None without one."""
        if not certificate:
            return None
        return f"User:{self._mapper.principal(distinguished_name(certificate))}"

    def _read(self, layers: BrokerLayers) -> TlsSettings:
        return TlsSettings.read(lambda name: listener_value(layers, self.listener, name))
