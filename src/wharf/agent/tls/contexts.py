"""Puts certificates and keys from files into a TLS context, and says of a file that cannot be used which one it is.

The library's own words name no file. It never asks a person for the password of a key.

How processes of this agent call servers over TLS: whom they believe, and what they show of themselves.
"""

import logging
import ssl

from wharf.agent.errors import StartupError
from wharf.cluster.api.settings import TlsSettings, TlsVersion


def load_authority(context: ssl.SSLContext, tls: TlsSettings) -> None:
    """Believe whom the authority has signed. Raises StartupError."""
    _read("ca_file", tls.ca_file)
    _load_certificates(context, "ca_file", tls.ca_file)


def load_certificate(context: ssl.SSLContext, tls: TlsSettings) -> None:
    """Show this agent's certificate to the other side. Raises CannotStart, and then the context is as it was."""
    _read("cert_file", tls.cert_file)
    _read("key_file", tls.key_file)
    _load_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "cert_file", tls.cert_file)
    # A context that is given half of what belongs together keeps that half, and every handshake fails from then on.
    _load_own(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tls)
    _load_own(context, tls)


def _load_own(context: ssl.SSLContext, tls: TlsSettings) -> None:
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_password)
    except _NeedsPassword as error:
        raise StartupError(f"tls.key_file {tls.key_file} needs a password: give a key without one") from error
    except ssl.SSLError as error:
        raise StartupError(_sentence(error, tls)) from error
    except OSError as error:
        raise StartupError(f"tls.key_file {tls.key_file} cannot be used: {error.strerror}") from error


def _sentence(error: ssl.SSLError, tls: TlsSettings) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"tls.key_file {tls.key_file} is not the key of {tls.cert_file}"
    if error.reason is None or error.reason.startswith("PEM") or error.reason == "NO_START_LINE":
        return f"tls.key_file {tls.key_file} holds no key in PEM form"
    return f"tls.cert_file {tls.cert_file} with tls.key_file {tls.key_file} cannot be used: {error.reason}"


class _NeedsPassword(Exception):
    """Raised through the library, which else would ask at the terminal."""


def _no_password() -> str:
    raise _NeedsPassword


def _read(key: str, file: str) -> None:
    try:
        with open(file, "rb") as opened:
            opened.read(1)
    except OSError as error:
        raise StartupError(f"tls.{key} {file} cannot be read: {error.strerror}") from error


def _load_certificates(context: ssl.SSLContext, key: str, file: str) -> None:
    try:
        context.load_verify_locations(file)
    except (OSError, ssl.SSLError) as error:
        raise StartupError(f"tls.{key} {file} holds no certificate in PEM form") from error


log = logging.getLogger(__name__)


def build_client_tls_context(tls: TlsSettings) -> ssl.SSLContext | None:
    """None where TLS is off. Raises StartupError when a file cannot be used."""
    if not tls.http:
        return None
    if tls.ca_file:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load_authority(context, tls)
    else:
        context = ssl.create_default_context()
    # Within a cluster the authority decides who belongs to it; names would have to hold every address.
    context.check_hostname = tls.verify_server_hostname or not tls.ca_file
    load_certificate(context, tls)
    return context


def reload_client_tls(context: ssl.SSLContext | None, tls: TlsSettings) -> None:
    """At a reload: connections that are made from now on show the new certificate, and believe new authorities too."""
    if context is None:
        return
    try:
        load_certificate(context, tls)
        if tls.ca_file:
            load_authority(context, tls)
    except StartupError as error:
        log.error("the new certificate cannot be shown to other servers; the old one stays", extra={"why": str(error)})


def build_server_tls_context(tls: TlsSettings) -> ssl.SSLContext:
    """Raises StartupError with the file that is to blame."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = {
        TlsVersion.TLS12: ssl.TLSVersion.TLSv1_2,
        TlsVersion.TLS13: ssl.TLSVersion.TLSv1_3,
    }[tls.tls_min_version]
    load_certificate(context, tls)
    if tls.verify_https_client:
        load_authority(context, tls)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
