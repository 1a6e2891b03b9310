"""Why a member of etcd cannot be spoken to over TLS: asked by a handshake of our own, because gRPC does not tell.

It only looks. What it finds is for people, and needs one: no waiting mends a certificate.
"""

import asyncio
import contextlib
import ssl
from typing import Final

from wharf.cluster.engines.etcd.settings import EtcdTls

TLS_CHECK_TIMEOUT_S: Final = 2.0
_NOT_OURS: Final = (
    "CERTIFICATE_REQUIRED",
    "BAD_CERTIFICATE",
    "UNKNOWN_CA",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_EXPIRED",
)
"""What a member says of our certificate, as OpenSSL calls it."""


async def find_tls_problem(endpoint: str, tls: EtcdTls) -> str:
    """What is wrong between our certificates and the member's, and what to look at; empty where nothing can be proved."""
    host, _, port = endpoint.rpartition(":")
    try:
        context = ssl.create_default_context(cafile=str(tls.ca_file))
        if tls.cert_file is not None:
            context.load_cert_chain(tls.cert_file, tls.key_file)
        async with asyncio.timeout(TLS_CHECK_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
            try:
                # Under TLS 1.3 a member says what it thinks of our certificate only after the handshake.
                await reader.read(1)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not accepted ({error.verify_message}): check state.etcd.tls.ca_file and the address"
    except ssl.SSLError as error:
        if any(mark in (error.reason or "") for mark in _NOT_OURS):
            return "it does not accept our certificate: check state.etcd.tls.cert_file and key_file"
        return ""
    except (OSError, TimeoutError, ValueError):
        return ""
    return ""
