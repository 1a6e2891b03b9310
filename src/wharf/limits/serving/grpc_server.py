"""The gRPC server of the rate limit protocol, with the standard health service. Limits what proxies can occupy."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Final

from wharf.limits.admin.metrics import Metric
from wharf.limits.config.certificates import check_authorities, check_certificate
from wharf.limits.config.file_watcher import WatchedFile
from wharf.limits.config.settings import ServeSettings
from wharf.limits.serving.envoy import InvalidRateLimitRequest, RateLimitService
from wharf.limits.serving.messages import SERVICE
from wharf.world.addresses import format_host_and_port
from wharf.world.quiet_grpc import grpc

log = logging.getLogger(__name__)

HEALTH_SERVICE: Final = "grpc.health.v1.Health"
MAX_METADATA_BYTES: Final = 64 * 1024
"""The largest headers of a call. Proxies send few."""
MAX_HEALTH_BYTES: Final = 256
"""The longest request of the health service, which is the name of a service."""
MIN_PING_INTERVAL_MS: Final = 5_000
"""A proxy that pings more often without calls is disconnected."""
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3


class RateLimitServer:
    """Listens for gRPC calls of proxies."""

    def __init__(self, service: RateLimitService, settings: ServeSettings) -> None:
        self.port = 0
        self.requests = 0
        """The number of calls for decisions."""
        self.invalid_requests = 0
        self.failures = 0
        """Calls that ended with an error of the limiter."""
        self._service = service
        self._settings = settings
        self._server: Any = None
        self._new_certificate: Any = None
        """A changed certificate that grpc has not taken yet."""
        self._is_ending = False
        self._ending = asyncio.Event()

    async def open(self) -> None:
        """Start to listen. Raises `OSError` if the address cannot be used, and `InvalidFile` for an unusable certificate."""
        settings = self._settings
        self._server = server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", settings.message_bytes_most),
                ("grpc.max_concurrent_streams", settings.streams_most),
                ("grpc.max_metadata_size", MAX_METADATA_BYTES),
                ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
                ("grpc.max_allowed_incoming_connections", settings.connections_most),
                ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.keepalive_time_ms", settings.idle_ms),  # Finds proxies that have disappeared.
                ("grpc.keepalive_timeout_ms", 20_000),
                ("grpc.server_handshake_timeout_ms", settings.head_ms),
                ("grpc.so_reuseport", 0),  # Otherwise two limiters could listen on one port without an error.
            ],
            maximum_concurrent_rpcs=settings.calls_most,
        )
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    SERVICE, {"ShouldRateLimit": grpc.unary_unary_rpc_method_handler(self._should_rate_limit)}
                ),
                grpc.method_handlers_generic_handler(
                    HEALTH_SERVICE,
                    {
                        "Check": grpc.unary_unary_rpc_method_handler(self._check_health),
                        "Watch": grpc.unary_stream_rpc_method_handler(self._watch_health),
                    },
                ),
            )
        )
        address = format_host_and_port(settings.grpc_host, settings.grpc_port)
        credentials = self._load_credentials()
        try:
            self.port = (
                server.add_insecure_port(address)
                if credentials is None
                else server.add_secure_port(address, credentials)
            )
        except RuntimeError as error:
            raise OSError(
                f"cannot listen on {address}: the port is in use, or this machine does not have the address"
            ) from error
        await server.start()

    def _load_credentials(self) -> Any:
        """Return the TLS credentials; `None` without a certificate. Raises `InvalidFile` if a file cannot be used."""
        settings = self._settings
        if settings.certificate_file is None or settings.key_file is None:
            return None
        return grpc.dynamic_ssl_server_credentials(
            self._read_certificate(settings.certificate_file, settings.key_file),
            self._take_new_certificate,
            require_client_authentication=settings.client_ca_file is not None,
        )

    def _read_certificate(self, certificate_file: Path, key_file: Path) -> Any:
        """Return the certificate and the authority of proxies as grpc reads them. Raises `InvalidFile`."""
        client_ca_file = self._settings.client_ca_file
        check_certificate(certificate_file, key_file)
        if client_ca_file is not None:
            check_authorities(client_ca_file)
        client_ca = None if client_ca_file is None else client_ca_file.read_bytes()
        return grpc.ssl_server_certificate_configuration(
            [(key_file.read_bytes(), certificate_file.read_bytes())], root_certificates=client_ca
        )

    def _take_new_certificate(self) -> Any:
        """Return the certificate for new connections if it has changed, else `None`. Called by threads of grpc."""
        changed, self._new_certificate = self._new_certificate, None
        return changed

    def build_watched_certificate(self) -> WatchedFile | None:
        """Return the certificate as a file to watch; `None` without one. Each change applies to new connections."""
        settings = self._settings
        certificate_file, key_file = settings.certificate_file, settings.key_file
        if certificate_file is None or key_file is None:
            return None

        async def apply_certificate(_text: str) -> None:
            self._new_certificate = self._read_certificate(certificate_file, key_file)

        others = [file for file in (key_file, settings.client_ca_file) if file is not None]
        return WatchedFile(certificate_file, "certificate", apply_certificate, others=tuple(others))

    async def close(self) -> None:
        """Report to health checks that the server ends, finish running calls, and stop."""
        self._is_ending = True
        self._ending.set()
        if self._server is not None:
            await self._server.stop(self._settings.drain_ms / 1_000)

    def list_metrics(self) -> Iterable[Metric]:
        """Return the numbers of calls and errors."""
        yield Metric("grpc_requests_total", "Calls of Envoy's rate limit protocol.", self.requests)
        yield Metric("grpc_invalid_total", "Of these, those that could not be decided.", self.invalid_requests)
        yield Metric("grpc_failures_total", "Of these, those that ended with an error of the limiter.", self.failures)

    async def _should_rate_limit(self, message: bytes, context: Any) -> bytes:
        """Answer a request for a decision. The call is cancelled when its deadline has passed."""
        self.requests += 1
        try:
            return await self._service.answer(message)
        except InvalidRateLimitRequest as error:
            self.invalid_requests += 1
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except asyncio.CancelledError:
            raise
        except Exception:  # Last resort: the proxy must get a status that it can handle.
            self.failures += 1
            log.exception("rate limit request failed")
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the limiter failed; its log has the reason")
        raise AssertionError("abort raises")

    async def _check_health(self, message: bytes, context: Any) -> bytes:
        """Answer a health check: serving, or not serving while the limiter stops."""
        status = self._get_status(message)
        if status == _SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service: {SERVICE} and an empty name are known")
        return _encode_health(status)

    async def _watch_health(self, message: bytes, _context: Any) -> AsyncIterator[bytes]:
        """Yield the health now, and again when the limiter stops."""
        status = self._get_status(message)
        yield _encode_health(status)
        await self._ending.wait()
        if status == _SERVING:
            yield _encode_health(_NOT_SERVING)

    def _get_status(self, message: bytes) -> int:
        """Return the health of the service that a health request names."""
        names = (b"", _encode_name(SERVICE), _encode_name(HEALTH_SERVICE), b"\x0a\x00")
        if len(message) > MAX_HEALTH_BYTES or message not in names:
            return _SERVICE_UNKNOWN
        return _NOT_SERVING if self._is_ending else _SERVING


def _encode_name(name: str) -> bytes:
    """Return an encoded health request for a service with a short name: tag and length precede the name."""
    return bytes((0x0A, len(name))) + name.encode()


def _encode_health(status: int) -> bytes:
    """Return an encoded health reply: a tag and the status."""
    return bytes((0x08, status))
