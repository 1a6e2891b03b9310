"""The certificates of ports: whether the files of one can be used, and a context that takes a new one."""

import ssl
from pathlib import Path

from wharf.languages.source_locations import SourceLocation
from wharf.limits.toml.problems import FileProblem, InvalidFile
from wharf.world.tls_contexts import build_server_context


def load_certificate(context: ssl.SSLContext, certificate_file: Path, key_file: Path) -> None:
    """Load a certificate with its key into a context, whose later connections use it.

    The files are tried in another context first, so that an unusable pair changes nothing. Raises `InvalidFile`.
    """
    check_certificate(certificate_file, key_file)
    try:
        context.load_cert_chain(certificate_file, key_file, password=_refuse_password)
    except (OSError, ValueError) as error:  # The files have changed since the check.
        raise InvalidFile([_build_problem(certificate_file, key_file, error)]) from None


def check_certificate(certificate_file: Path, key_file: Path) -> None:
    """Raise `InvalidFile` if these files are no certificate with its key."""
    try:
        build_server_context().load_cert_chain(certificate_file, key_file, password=_refuse_password)
    except (OSError, ValueError) as error:
        raise InvalidFile([_build_problem(certificate_file, key_file, error)]) from None


def check_authorities(file: Path) -> None:
    """Raise `InvalidFile` if this file has no certificate of an authority."""
    try:
        build_server_context().load_verify_locations(file)
    except (OSError, ValueError) as error:
        reason = "it has no certificate in PEM form" if isinstance(error, ssl.SSLError) else error
        raise InvalidFile([FileProblem(str(file), SourceLocation(1, 1), "", f"cannot be used: {reason}")]) from None


def _refuse_password() -> str:
    """Prevent that the library asks for the passphrase of a key at the terminal, which would stop the event loop."""
    raise ValueError("the key has a passphrase: remove it, such as with openssl pkey -in KEY -out NEW")


def _build_problem(certificate_file: Path, key_file: Path, error: OSError | ValueError) -> FileProblem:
    """Return why certificate and key cannot be used together."""
    missing = next((file for file in (certificate_file, key_file) if not file.exists()), None)
    match error:
        case _ if missing is not None:
            reason = f"{missing} does not exist"
        case ssl.SSLError(reason="KEY_VALUES_MISMATCH"):
            reason = f"the key in {key_file} belongs to another certificate"
        case ssl.SSLError():
            reason = f"the certificate or its key in {key_file} is not in PEM form"
        case OSError():
            reason = f"the files cannot be read: {error.strerror}"
        case _:
            reason = str(error)
    return FileProblem(str(certificate_file), SourceLocation(1, 1), "", f"certificate not usable: {reason}")
