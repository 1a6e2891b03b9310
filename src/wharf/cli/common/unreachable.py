"""What a user can do if servers do not reply, close the connection, or cannot reach their store."""

import contextlib
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from wharf.cli.common.program import name_variables
from wharf.cli.common.times import NS_PER_SECOND
from wharf.cli.common.waiting_notices import STALE_TEXT

if TYPE_CHECKING:
    from wharf.contract.client import ClientSettings, Unreachable
    from wharf.contract.client.errors import RequestRefused

UNCHANGED_TEXT: Final = "nothing was changed, so repeat the command"
OTHER_SERVER_TEXT: Final = "is this the address of a Wharf server?"
UNKNOWN_PATH_TEXT: Final = "404 page not found"
"""The reply of many programs that are written in Go, such as etcd, to a path that they do not have."""
CERTIFICATE_OPTIONS: Final = "--client-cert and --client-key, or WHARF_CLIENT_CERT and WHARF_CLIENT_KEY"
CLIENT_CERTIFICATE_TEXT: Final = (
    "set "
    + CERTIFICATE_OPTIONS
    + ", to a certificate that is valid and that an authority in `tls.ca_file` of the server signed"
)
LOCAL_HOSTS: Final = ("localhost", "::1")
PROBE_TIMEOUT_S: Final = 1.0
"""Limit of each step of a connection that finds out why the server closed the last one."""


def describe_store_outage(error: "RequestRefused", settings: "ClientSettings") -> str:
    """Return which servers reported that they cannot reach their store, which did not reply, and what to do."""
    from wharf.contract.client.errors import RequestRefused

    others = error.other_failures
    agreeing = [other for other in others if isinstance(other, RequestRefused) and other.reason is error.reason]
    silent = [str(other) for other in others if not isinstance(other, RequestRefused)]
    parts: list[str] = []
    if len(settings.addresses) > 1:
        parts.append(f"{1 + len(agreeing)} of {len(settings.addresses)} servers report this")
    parts += silent
    parts.append(
        "restore the store: of etcd, more than half of the members must run; a store on SQLite is a process of the server's "
        "agent, which restarts it if it hangs"
    )
    parts.append(STALE_TEXT if error.is_read else f"{UNCHANGED_TEXT} then")
    return "; ".join(parts)


def suggest_fix(error: "Unreachable", settings: "ClientSettings", *, now_ns: int) -> str:
    """Return what to do about a failed connection. `now_ns` is the wall clock, which shows expired certificates."""
    return name_variables(_suggest_fix(error, settings, now_ns=now_ns))


def _suggest_fix(error: "Unreachable", settings: "ClientSettings", *, now_ns: int) -> str:
    from wharf.contract.client.transport import TlsFailure

    fixes = {
        TlsFailure.UNTRUSTED_SERVER_CERTIFICATE: "set --ca-cert or WHARF_CACERT to the certificate of the authority that "
        "signed it",
        TlsFailure.EXPIRED_SERVER_CERTIFICATE: "renew the certificate on the server (`wharf tls create`), and check the "
        "clocks of both machines",
        TlsFailure.WRONG_SERVER_NAME: "use an address that the certificate contains, or set --tls-server-name or "
        "WHARF_TLS_SERVER_NAME to a name that it contains",
        TlsFailure.CLIENT_CERTIFICATE_REQUIRED: f"the server requires a client certificate: {CLIENT_CERTIFICATE_TEXT}",
        TlsFailure.SERVER_WITHOUT_TLS: "set --address or WHARF_ADDR",
        TlsFailure.OTHER: "does the server use https?",
    }
    if error.tls_failure is not None:
        return fixes[error.tls_failure]
    if error.is_silent:
        fix = "the server is frozen or overloaded: check its machine, or select another server with --address or WHARF_ADDR"
    elif error.is_sent:
        if explanation := _explain_closed_connection(settings, now_ns):
            return explanation  # The server did not receive the request.
        fix = OTHER_SERVER_TEXT
    else:
        if not all(map(_is_local, settings.addresses)):
            return "check that a server runs there and listens on this address; --address or WHARF_ADDR selects another"
        return "`wharf dev` starts a server on this machine; --address or WHARF_ADDR selects another"
    return fix if error.is_read else f"the change may already have been applied: check with `wharf status`; {fix}"


def _is_local(address: str) -> bool:
    """Return whether a server at this address runs on this machine."""
    url = urlsplit(address)
    return url.scheme == "unix" or (url.hostname or "") in LOCAL_HOSTS or (url.hostname or "").startswith("127.")


def suggest_address(settings: "ClientSettings") -> str:
    """Return what to check if the reply is not that of a Wharf server."""
    for address in settings.addresses:
        url = urlsplit(address)
        if url.scheme in ("http", "https") and url.path:
            variable = name_variables("WHARF_ADDR")
            return f"the address has the path {url.path}: set --address or {variable} to {url.scheme}://{url.netloc}"
    return OTHER_SERVER_TEXT


def _explain_closed_connection(settings: "ClientSettings", now_ns: int) -> str:
    """Return why a server closes connections, as a new connection to it shows; empty if that shows nothing."""
    for address in settings.addresses:
        url = urlsplit(address)
        try:
            port = url.port
        except ValueError:
            continue
        if not url.hostname or port is None:
            continue
        if url.scheme == "http" and _begins_tls(url.hostname, port):
            return f"the server uses https; set --address or WHARF_ADDR to https://{url.netloc}"
        if url.scheme == "https" and _closes_after_tls(url.hostname, port, settings):
            if not settings.cert_file:
                return f"the server requires a client certificate; {CLIENT_CERTIFICATE_TEXT}"
            state = _describe_expiry(settings.cert_file, now_ns) or "is not accepted by the server"
            return f"the client certificate {settings.cert_file} {state}; {CLIENT_CERTIFICATE_TEXT}"
    return ""


def _describe_expiry(file: str, now_ns: int) -> str:
    """Return that a certificate has expired, and when; empty if it has not, or if the file cannot be read."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(Path(file).read_bytes())
    except (OSError, ValueError):
        return ""
    end = certificate.not_valid_after_utc
    return f"expired on {end:%Y-%m-%d %H:%M} UTC" if end.timestamp() * NS_PER_SECOND < now_ns else ""


def _begins_tls(host: str, port: int) -> bool:
    """Return whether the server at this address uses TLS."""
    from wharf.world.tls_contexts import NO_VERIFICATION, get_client_context

    context = get_client_context(NO_VERIFICATION)  # Nothing is sent: the connection only shows whether TLS begins.
    try:
        with socket.create_connection((host, port), PROBE_TIMEOUT_S) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        # A server that refuses this client in TLS uses TLS too.
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _closes_after_tls(host: str, port: int, settings: "ClientSettings") -> bool:
    """Return whether the server closes a connection with these settings right after TLS has begun, without a request.

    With TLS 1.3, a server checks the client certificate after the client has finished, and closes the connection.
    """
    from wharf.contract.client import ClientSettingsError
    from wharf.contract.client.connection import build_tls_context

    with contextlib.suppress(OSError, ClientSettingsError):
        context = build_tls_context(settings)
        with socket.create_connection((host, port), PROBE_TIMEOUT_S) as plain:
            try:
                with context.wrap_socket(plain, server_hostname=settings.server_name or host) as connection:
                    return connection.recv(1) == b""
            except TimeoutError:
                return False  # The server waits for a request.
            except (ssl.SSLError, ConnectionError):
                return True
    return False
