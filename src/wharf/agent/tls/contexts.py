"""Builds TLS contexts for servers and clients from the configured files. Errors name the file that cannot be used.

It never prompts for the password of a key.
"""

import logging
import ssl

from wharf.agent.errors import StartupError
from wharf.agent.tls.validity import require_valid_certificates
from wharf.cluster.api.settings import TlsSettings, TlsVersion
from wharf.world.tls_contexts import build_client_context, build_empty_client_context, build_server_context

log = logging.getLogger(__name__)


def load_authority(context: ssl.SSLContext, tls: TlsSettings) -> None:
    """Trust certificates that the configured authority signed. Raises `StartupError`."""
    _check_readable("ca_file", tls.ca_file)
    _load_certificates(context, "ca_file", tls.ca_file)


def load_certificate(context: ssl.SSLContext, tls: TlsSettings) -> None:
    """Load this agent's certificate and key. Raises `StartupError`, and then leaves the context unchanged."""
    _check_readable("cert_file", tls.cert_file)
    _check_readable("key_file", tls.key_file)
    _load_certificates(build_empty_client_context(), "cert_file", tls.cert_file)
    # Try a new context first: after a failed load the context could hold a certificate without its key.
    _load_key_pair(build_server_context(), tls)
    _load_key_pair(context, tls)


def _load_key_pair(context: ssl.SSLContext, tls: TlsSettings) -> None:
    """Load certificate and key into the context. Raises `StartupError` if the key needs a password or does not fit."""
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_password)
    except _NeedsPassword as error:
        raise StartupError(f"tls.key_file {tls.key_file} needs a password: give a key without one") from error
    except ssl.SSLError as error:
        raise StartupError(_describe_error(error, tls)) from error
    except OSError as error:
        raise StartupError(f"tls.key_file {tls.key_file} cannot be used: {error.strerror}") from error


def _describe_error(error: ssl.SSLError, tls: TlsSettings) -> str:
    """Return why OpenSSL could not load the certificate and the key, for the operator."""
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"tls.key_file {tls.key_file} is not the key of {tls.cert_file}"
    if error.reason is None or error.reason.startswith("PEM") or error.reason == "NO_START_LINE":
        return f"tls.key_file {tls.key_file} holds no key in PEM form"
    return f"tls.cert_file {tls.cert_file} with tls.key_file {tls.key_file} cannot be used: {error.reason}"


class _NeedsPassword(Exception):
    """Raised by the password callback, because the library would otherwise prompt at the terminal."""


def _no_password() -> str:
    raise _NeedsPassword


def _check_readable(key: str, file: str) -> None:
    """Raise `StartupError` if the file cannot be read. `key` is the name of its setting."""
    try:
        with open(file, "rb") as opened:
            opened.read(1)
    except OSError as error:
        raise StartupError(f"tls.{key} {file} cannot be read: {error.strerror}") from error


def _load_certificates(context: ssl.SSLContext, key: str, file: str) -> None:
    """Trust the certificates of the file. Raises `StartupError` if it has none. `key` is the name of its setting."""
    try:
        context.load_verify_locations(file)
    except (OSError, ssl.SSLError) as error:
        raise StartupError(f"tls.{key} {file} holds no certificate in PEM form") from error


def require_usable_tls_files(tls: TlsSettings) -> None:
    """Raise `StartupError` if a file of the settings cannot be used. Certificates that have ended can be."""
    build_client_tls_context(tls)
    if tls.http:
        build_server_tls_context(tls)


def check_tls_files(tls: TlsSettings, *, now_ns: int) -> None:
    """Raise `StartupError` if a file of the settings cannot be used, or if others refuse its certificate now."""
    require_usable_tls_files(tls)
    require_valid_certificates(tls, now_ns=now_ns)


def require_reloadable_certificate(running: TlsSettings, tls: TlsSettings) -> None:
    """Raise `StartupError` if a reload cannot add or remove the certificate of an agent without a TLS port.

    A context keeps its certificate, and an agent that has set no file has no context.
    """
    if running.cert_file and not tls.cert_file:
        raise StartupError("tls.cert_file was removed: restart the agent, because a reload cannot remove a certificate")
    if tls.cert_file and not running.cert_file and not running.ca_file:
        raise StartupError("tls.cert_file is new: restart the agent, because a reload only renews certificates")


def get_server_scheme(tls: TlsSettings) -> str:
    """Return the scheme of server addresses that have none: servers of one cluster have the same settings."""
    return "https" if tls.http else "http"


def build_client_tls_context(tls: TlsSettings) -> ssl.SSLContext | None:
    """Return the context for connections to servers with TLS, also if this agent has no TLS port itself.

    Return `None` if no file is set: the authorities of the system are trusted then. Raises `StartupError` if a file cannot
    be used.
    """
    if not tls.http and not tls.ca_file and not tls.cert_file:
        return None
    context = build_empty_client_context() if tls.ca_file else build_client_context()
    # The authority alone decides who belongs to the cluster: certificates would otherwise have to name every address.
    context.check_hostname = tls.verify_server_hostname or not tls.ca_file
    _load_client_files(context, tls)
    return context


def _load_client_files(context: ssl.SSLContext, tls: TlsSettings) -> None:
    """Load the authority and this agent's certificate, if they are set. Raises `StartupError`."""
    if tls.ca_file:
        load_authority(context, tls)
    if tls.http or tls.cert_file:
        load_certificate(context, tls)


def reload_client_tls(context: ssl.SSLContext | None, tls: TlsSettings) -> None:
    """Reload the files. New connections use the new certificate and trust new authorities. Logs an error on failure."""
    if context is None:
        return
    try:
        # If a file cannot be used, this fails before the context has changed. It reads no certificates of the system.
        _load_client_files(build_empty_client_context(), tls)
        _load_client_files(context, tls)
    except StartupError as error:
        log.error("client certificate not reloaded; the previous one stays in use", extra={"why": str(error)})


def build_server_tls_context(tls: TlsSettings) -> ssl.SSLContext:
    """Return the context of the HTTP port. Raises `StartupError`, which names the invalid file."""
    context = build_server_context()
    context.minimum_version = {
        TlsVersion.TLS12: ssl.TLSVersion.TLSv1_2,
        TlsVersion.TLS13: ssl.TLSVersion.TLSv1_3,
    }[tls.tls_min_version]
    load_certificate(context, tls)
    if tls.verify_https_client:
        load_authority(context, tls)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def reload_server_tls(context: ssl.SSLContext, tls: TlsSettings) -> None:
    """Reload the files. Raises `StartupError`, and then leaves the context unchanged."""
    build_server_tls_context(tls)  # If a file cannot be used, this fails before the context has changed.
    load_certificate(context, tls)
    if tls.verify_https_client:
        load_authority(context, tls)  # New authorities are added; removing one needs a restart.
