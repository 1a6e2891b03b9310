"""Finds out why TLS to an etcd member fails, by a handshake of its own, because gRPC does not report it.

It only diagnoses. An operator must fix what it finds: no retry repairs a certificate.
"""

import asyncio
import contextlib
import ssl
from typing import Final

from wharf.cluster.engines.etcd.settings import EtcdTls
from wharf.world.tls_contexts import ClientTls, load_client_context

TLS_CHECK_TIMEOUT_S: Final = 2.0
_CLIENT_CERTIFICATE_REASONS: Final = (
    "CERTIFICATE_REQUIRED",
    "BAD_CERTIFICATE",
    "UNKNOWN_CA",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_EXPIRED",
)
"""OpenSSL's reasons for a client certificate that the server rejected."""


async def find_tls_problem(endpoint: str, tls: EtcdTls) -> str:
    """Return what is wrong with the certificates and which setting to check; empty if no problem was found."""
    host, _, port = endpoint.rpartition(":")
    try:
        context = await load_client_context(
            ClientTls(
                ca_file=str(tls.ca_file),
                cert_file=str(tls.cert_file) if tls.cert_file is not None else "",
                key_file=str(tls.key_file) if tls.key_file is not None else "",
            )
        )
        async with asyncio.timeout(TLS_CHECK_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
            try:
                # Under TLS 1.3 a member reports a rejected client certificate only after the handshake.
                await reader.read(1)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not accepted ({error.verify_message}): check state.etcd.tls.ca_file and the address"
    except ssl.SSLError as error:
        if any(mark in (error.reason or "") for mark in _CLIENT_CERTIFICATE_REASONS):
            return "it does not accept our certificate: check state.etcd.tls.cert_file and key_file"
        return ""
    except (OSError, TimeoutError, ValueError):
        return ""
    return ""
