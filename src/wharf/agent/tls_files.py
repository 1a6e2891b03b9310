"""Puts certificates and keys from files into a TLS context, and says of a file that cannot be used which one it is.

The library's own words name no file. It never asks a person for the password of a key.
"""

import ssl

from wharf.agent.life import CannotStart
from wharf.api.settings import TlsSettings


def believe(context: ssl.SSLContext, tls: TlsSettings) -> None:
    """Believe whom the authority has signed. Raises CannotStart."""
    _read("ca_file", tls.ca_file)
    _load_certificates(context, "ca_file", tls.ca_file)


def show(context: ssl.SSLContext, tls: TlsSettings) -> None:
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
        raise CannotStart(f"tls.key_file {tls.key_file} needs a password: give a key without one") from error
    except ssl.SSLError as error:
        raise CannotStart(_sentence(error, tls)) from error
    except OSError as error:
        raise CannotStart(f"tls.key_file {tls.key_file} cannot be used: {error.strerror}") from error


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
        raise CannotStart(f"tls.{key} {file} cannot be read: {error.strerror}") from error


def _load_certificates(context: ssl.SSLContext, key: str, file: str) -> None:
    try:
        context.load_verify_locations(file)
    except (OSError, ssl.SSLError) as error:
        raise CannotStart(f"tls.{key} {file} holds no certificate in PEM form") from error
