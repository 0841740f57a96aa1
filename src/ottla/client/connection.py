"""One blocking connection to one broker: framing, version negotiation, TLS and login. Routing is in `client`."""

from __future__ import annotations

import socket
from struct import Struct
from typing import TYPE_CHECKING, TypeVar, cast

from ottla.client.auth import Security, SessionClock, login_failure
from ottla.protocol.api import find_api, response_class, response_header_version
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.header import ResponseHeader
from ottla.protocol.messages.k17_sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.k36_sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.security.sasl.mechanism import SaslError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.protocol.schema import Message

    Dial = Callable[[str, int, float], socket.socket]
    """Open a socket to a host and port within a timeout in seconds; raise OSError if that fails."""

R = TypeVar("R", bound="Message")
LENGTH = Struct(">i")
LARGEST_RESPONSE = 256 * 1024 * 1024
API_VERSIONS = 18
SASL_AUTHENTICATE = 36
SOFTWARE = "ottla"


class ConnectionFailedError(Exception):
    """A broker cannot be reached, or stopped answering."""


class BrokerConnection:
    """One socket to one broker; requests are sent one at a time. `dial` opens the socket in place of TCP and TLS."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str = SOFTWARE,
        timeout: float = 30.0,
        security: Security | None = None,
        dial: Dial | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.client_id = client_id
        self._timeout = timeout
        self._security = security or Security()
        self._dial = dial or self._dial_tcp
        self._socket: socket.socket | None = None
        self._correlation_id = 0
        self._versions: dict[int, range] = {}
        self._session = SessionClock()

    def __repr__(self) -> str:
        return f"<BrokerConnection {self.host}:{self.port}>"

    @property
    def address(self) -> str:
        """`host:port` of the broker."""
        return f"{self.host}:{self.port}"

    @property
    def versions(self) -> dict[int, range]:
        """The versions that the broker supports, by API key."""
        self._connect()
        return self._versions

    def send(
        self, request: Message, response: type[R], *, version: int | None = None, timeout: float | None = None
    ) -> R:
        """Send a request and return its response. The version is the newest of both sides unless one is given."""
        self._connect()
        key = request.__schema__.api_key
        assert key is not None
        if version is None:
            version = self.best_version(key)
        return cast("R", self._exchange(request, version, timeout or self._timeout))

    def send_without_response(self, request: Message, *, version: int | None = None) -> None:
        """Send a request that has no response: Produce with acks=0."""
        self._connect()
        key = request.__schema__.api_key
        assert key is not None
        self._write(request, self.best_version(key) if version is None else version)

    def best_version(self, key: int) -> int:
        """Return the newest version of an API that broker and client support; raise UNSUPPORTED_VERSION without one."""
        self._connect()
        api = find_api(key)
        supported = self._versions.get(key)
        if api is None or supported is None:
            name = f"API {key}" if api is None else api.name
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{self.address} does not support {name}.")
        newest = min(api.max_stable_version, supported[-1])
        if newest < max(api.min_version, supported[0]):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.address} supports {api.name} v{supported[0]}-{supported[-1]}, this client "
                f"v{api.min_version}-{api.max_stable_version}.",
            )
        return newest

    def close(self) -> None:
        """Close the socket, if it is open."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> None:
        if self._socket is not None:
            if self._session.due:
                self._log_in()
            return
        try:
            raw = self._dial(self.host, self.port, self._timeout)
        except OSError as error:
            raise ConnectionFailedError(f"cannot connect to {self.address}: {error.strerror or error}") from error
        self._socket = raw
        try:
            self._negotiate()
            self._log_in()
        except BaseException:
            self.close()
            raise

    def _dial_tcp(self, host: str, port: int, timeout: float) -> socket.socket:
        raw = socket.create_connection((host, port), timeout=timeout)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = self._security.context()
        return raw if context is None else context.wrap_socket(raw, server_hostname=host)

    def _log_in(self) -> None:
        """Authenticate a new connection, or re-authenticate before the session ends (KIP-368)."""
        login = self._security.login
        if login is None:
            return
        handshake = cast(
            "SaslHandshakeResponse", self._exchange(SaslHandshakeRequest(mechanism=login.mechanism), 1, self._timeout)
        )
        if handshake.error_code:
            offered = ", ".join(handshake.mechanisms) or "none"
            raise KafkaError(handshake.error_code, f"{self.address} offers the SASL mechanisms {offered}.")
        version = min(self._versions[SASL_AUTHENTICATE][-1], 2) if SASL_AUTHENTICATE in self._versions else 0

        def exchange(token: bytes) -> tuple[bytes, int]:
            request = SaslAuthenticateRequest(auth_bytes=token)
            response = cast("SaslAuthenticateResponse", self._exchange(request, version, self._timeout))
            if response.error_code:
                raise KafkaError(response.error_code, f"{self.address}: {response.error_message or 'login refused'}")
            return bytes(response.auth_bytes), response.session_lifetime_ms

        try:
            self._session.logged_in(login.authenticate(exchange))
        except SaslError as error:
            self.close()
            raise login_failure(error, self.address) from error

    def _negotiate(self) -> None:
        """Read the broker's API versions. A broker without ApiVersions v4 answers in version 0 (KIP-511)."""
        request = ApiVersionsRequest(client_software_name=SOFTWARE, client_software_version=_our_version())
        correlation_id = self._write(request, 4)
        frame = self._read_frame(self._timeout)
        position = self._check_header(frame, correlation_id, API_VERSIONS, 4)
        if int.from_bytes(frame[position : position + 2], "big") == ErrorCode.UNSUPPORTED_VERSION:
            offered = ApiVersionsResponse.decode_from(frame, position, 0)[0]
            best = max((api.max_version for api in offered.api_keys if api.api_key == API_VERSIONS), default=0)
            response = cast("ApiVersionsResponse", self._exchange(request, min(best, 4), self._timeout))
        else:
            response = ApiVersionsResponse.decode_from(frame, position, 4)[0]
        if response.error_code:
            raise KafkaError(response.error_code, f"{self.address} refused ApiVersions.")
        self._versions = {api.api_key: range(api.min_version, api.max_version + 1) for api in response.api_keys}

    def _exchange(self, request: Message, version: int, timeout: float) -> Message:
        key = request.__schema__.api_key
        assert key is not None
        correlation_id = self._write(request, version)
        frame = self._read_frame(timeout)
        position = self._check_header(frame, correlation_id, key, version)
        try:
            response, end = response_class(key).decode_from(frame, position, version)
        except ProtocolError as error:
            self.close()
            raise ConnectionFailedError(f"{self.address} sent a malformed response: {error}") from error
        if end != len(frame):
            self.close()
            raise ConnectionFailedError(f"{self.address} sent {len(frame) - end} bytes after the response")
        return response

    def _write(self, request: Message, version: int) -> int:
        key = request.__schema__.api_key
        assert key is not None
        assert self._socket is not None
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        data = encode_request(key, version, self._correlation_id, self.client_id, request)
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(data)
        except OSError as error:
            self.close()
            raise ConnectionFailedError(f"cannot send to {self.address}: {error}") from error
        return self._correlation_id

    def _read_frame(self, timeout: float) -> memoryview:
        size = LENGTH.unpack(self._read_exactly(4, timeout))[0]
        if not 4 <= size <= LARGEST_RESPONSE:
            self.close()
            raise ConnectionFailedError(f"{self.address} announced a response of {size} bytes; is it a Kafka broker?")
        return self._read_exactly(size, timeout)

    def _read_exactly(self, count: int, timeout: float) -> memoryview:
        assert self._socket is not None
        self._socket.settimeout(timeout)
        # Grown as bytes arrive, so that a wrong length allocates no memory.
        buffer = bytearray(min(count, 1024 * 1024))
        filled = 0
        try:
            while filled < count:
                if filled == len(buffer):
                    buffer.extend(bytes(min(count - filled, len(buffer))))
                with memoryview(buffer) as view, view[filled:] as free:
                    received = self._socket.recv_into(free)
                if not received:
                    raise ConnectionError("it closed the connection")
                filled += received
        except OSError as error:
            self.close()
            raise ConnectionFailedError(f"{self.address} did not answer: {error}") from error
        return memoryview(buffer)

    def _check_header(self, frame: memoryview, correlation_id: int, key: int, version: int) -> int:
        header, position = ResponseHeader.decode_from(frame, 0, response_header_version(key, version))
        if header.correlation_id != correlation_id:
            self.close()
            raise ConnectionFailedError(
                f"{self.address} answered request {header.correlation_id} instead of {correlation_id}"
            )
        return int(position)


def _our_version() -> str:
    from ottla import __version__

    return __version__
