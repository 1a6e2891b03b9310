"""Finds out why connections to etcd members fail, by handshakes of its own, because gRPC does not report it.

It only diagnoses. An operator must fix what it finds: no retry repairs a certificate.
"""

import asyncio
import contextlib
import ssl
from typing import Final

from wharf.cluster.engines.etcd.settings import EtcdSettings, EtcdTls
from wharf.world import World
from wharf.world.tls_contexts import NO_VERIFICATION, ClientTls, load_client_context

TLS_CHECK_TIMEOUT_S: Final = 2.0
MIN_CHECK_INTERVAL_S: Final = 10.0
"""How long a result counts. While etcd is away, each call would otherwise wait for a check, and add connections to it."""
HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
"""What a client of HTTP/2 sends first: the preface, and its settings, which are empty."""
FRAME_HEADER_BYTES: Final = 9
SETTINGS_FRAME_TYPE: Final = 4
_CLIENT_CERTIFICATE_REASONS: Final = (
    "CERTIFICATE_REQUIRED",
    "BAD_CERTIFICATE",
    "UNKNOWN_CA",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_EXPIRED",
)
"""OpenSSL's reasons for a client certificate that the server rejected."""
_VALIDITY_ERRORS: Final = (9, 10)
"""OpenSSL's numbers for a certificate that is not valid yet, or has ended."""
_ALERT: Final = "ALERT"
"""A part of OpenSSL's reasons for alerts, which only a program with TLS sends."""


class TlsDiagnosis:
    """What is wrong with TLS to the members of one etcd. Callers at the same time share one check."""

    def __init__(self, world: World, settings: EtcdSettings) -> None:
        self._world = world
        self._settings = settings
        self._check: asyncio.Task[str] | None = None
        self._valid_until_s = 0.0
        self.is_lasting = False
        """Whether the last check found a problem at every member: retries cannot help."""

    async def find_problem(self) -> str:
        """Return what is wrong and which setting to check; empty if nothing was found."""
        now_s = self._world.monotonic_s()
        if self._check is None or (self._check.done() and now_s >= self._valid_until_s):
            self._valid_until_s = now_s + MIN_CHECK_INTERVAL_S
            self._check = self._world.start_task(self._check_members(), name="TLS check of etcd")
        return await asyncio.shield(self._check)

    async def _check_members(self) -> str:
        """Check all members at the same time and return the first problem."""
        endpoints, tls = self._settings.endpoints, self._settings.tls
        problems = await asyncio.gather(*(_find_problem(endpoint, tls) for endpoint in endpoints))
        self.is_lasting = all(problems)
        return next(
            (f"{endpoint}: {problem}" for endpoint, problem in zip(endpoints, problems, strict=True) if problem), ""
        )


async def _find_problem(endpoint: str, tls: EtcdTls | None) -> str:
    """Return what is wrong with TLS to a member; empty if nothing was found, such as because it is away."""
    try:
        async with asyncio.timeout(TLS_CHECK_TIMEOUT_S):
            if tls is None:
                return await _find_missing_tls(endpoint)
            return await _find_wrong_tls(endpoint, tls)
    except (OSError, TimeoutError, ValueError):
        return ""


async def _find_missing_tls(endpoint: str) -> str:
    """Return that the member requires TLS, if it does. Raises `OSError` and `ValueError`."""
    try:
        await _shake_hands(endpoint, await load_client_context(NO_VERIFICATION))
    except ssl.SSLError as error:
        if _ALERT not in (error.reason or ""):
            return ""
    return "it requires TLS: set state.etcd.tls.ca_file to the file with the certificate of its authority"


async def _find_wrong_tls(endpoint: str, tls: EtcdTls) -> str:
    """Return that the member has no TLS, or which certificate is not accepted. Raises `OSError` and `ValueError`."""
    context = await load_client_context(
        ClientTls(
            ca_file=str(tls.ca_file),
            cert_file=str(tls.cert_file) if tls.cert_file is not None else "",
            key_file=str(tls.key_file) if tls.key_file is not None else "",
        )
    )
    try:
        await _shake_hands(endpoint, context)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _VALIDITY_ERRORS:
            return f"its certificate is not accepted ({error.verify_message}): renew the certificate of etcd"
        return f"its certificate is not accepted ({error.verify_message}): check state.etcd.tls.ca_file and the address"
    except (ssl.SSLError, ConnectionError) as error:
        reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
        if any(mark in reason for mark in _CLIENT_CERTIFICATE_REASONS):
            return (
                "it does not accept our certificate: check state.etcd.tls.cert_file and key_file, "
                "and whether the certificate has ended"
            )
        if _ALERT not in reason and await _speaks_without_tls(endpoint):
            return "it has no TLS: remove the table state.etcd.tls, or start etcd with a certificate"
    return ""


async def _shake_hands(endpoint: str, context: ssl.SSLContext) -> None:
    """Make a TLS handshake with the member. Raises `OSError`, of which `SSLError` is one."""
    host, port = _split(endpoint)
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        # Under TLS 1.3 a member reports a rejected client certificate only after the handshake.
        await reader.read(1)
    finally:
        await _close(writer)


async def _speaks_without_tls(endpoint: str) -> bool:
    """Return whether the member answers HTTP/2 without TLS, as gRPC uses it. Raises `OSError`."""
    host, port = _split(endpoint)
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(HTTP2_PREFACE)
        frame = await reader.read(FRAME_HEADER_BYTES)
        return len(frame) == FRAME_HEADER_BYTES and frame[3] == SETTINGS_FRAME_TYPE
    finally:
        await _close(writer)


def _split(endpoint: str) -> tuple[str, int]:
    """Return host and port. Raises `ValueError`."""
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close a connection."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
