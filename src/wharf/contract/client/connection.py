"""Builds HTTP clients from settings. Imports the HTTP library only when a client is built, because that import is slow."""

import ssl
from base64 import b64encode
from typing import Any, Final

from wharf.contract.client.async_client import AsyncClient
from wharf.contract.client.flow import ClientDefaults, RetryPolicy
from wharf.contract.client.settings import ClientSettings, read_settings
from wharf.contract.client.sync_client import SyncClient
from wharf.contract.client.transport import find_header_problem
from wharf.world import RealWorld, World
from wharf.world.tls_contexts import ClientTls, get_client_context

SCHEMES: Final = ("http://", "https://", "unix://")


class ClientSettingsError(Exception):
    """The error for settings that cannot be used: an invalid certificate file or server address."""


def connect(
    settings: ClientSettings | None = None,
    *,
    world: World | None = None,
    retry_policy: RetryPolicy | None = None,
    retries: RetryPolicy | None = None,
) -> SyncClient:
    """Return a synchronous client of the servers in `settings`, or of those in environment variables.

    `retries` is the former name of `retry_policy`. Raises `ClientSettingsError`, or `Unreachable` if an address is malformed. Does not connect yet.
    """
    from wharf.contract.client.http_transport import SyncHttpTransport

    settings = settings or read_settings()
    transports = [
        SyncHttpTransport(address, **_build_transport_options(settings, address)) for address in settings.addresses
    ]
    return SyncClient(
        world or RealWorld(),
        transports,
        defaults=_build_defaults(settings),
        retry_policy=retry_policy or retries,
        sends_probes=True,
    )


def connect_async(
    settings: ClientSettings | None = None,
    *,
    world: World | None = None,
    retry_policy: RetryPolicy | None = None,
    retries: RetryPolicy | None = None,
) -> AsyncClient:
    """Return an asyncio client of the servers in `settings`, or of those in environment variables.

    `retries` is the former name of `retry_policy`. Raises `ClientSettingsError`, or `Unreachable` if an address is malformed. Does not connect yet.
    """
    from wharf.contract.client.http_transport import HttpTransport

    settings = settings or read_settings()
    transports = [
        HttpTransport(address, **_build_transport_options(settings, address)) for address in settings.addresses
    ]
    return AsyncClient(
        world or RealWorld(),
        transports,
        defaults=_build_defaults(settings),
        retry_policy=retry_policy or retries,
        sends_probes=True,
    )


def _build_defaults(settings: ClientSettings) -> ClientDefaults:
    """Return the defaults of calls that the settings contain."""
    return ClientDefaults(settings.namespace, settings.region, settings.stale)


def _build_transport_options(
    settings: ClientSettings, address: str
) -> dict[str, Any]:  # The values have different types.
    """Return the keyword arguments of the synchronous and the asyncio HTTP transport for one server.

    Raises `ClientSettingsError` if the address has an unknown scheme or a certificate file cannot be used.
    """
    if not address.startswith(SCHEMES):
        raise ClientSettingsError(f"invalid server address {address}: use http://, https:// or unix://")
    headers = _build_proxy_headers(settings)
    check_token(settings.token)
    return {
        "token": settings.token,
        "tls": build_tls_context(settings) if address.startswith("https://") else None,
        "server_name": settings.server_name,
        "headers": headers,
    }


def _build_proxy_headers(settings: ClientSettings) -> dict[str, str]:
    """Return the header for basic authentication at a proxy in front of the servers; empty if none is configured."""
    if not settings.http_auth:
        return {}
    return {"authorization": f"Basic {b64encode(settings.http_auth.encode()).decode()}"}


def check_token(token: str) -> None:
    """Raise `ClientSettingsError` if the token cannot be sent in a header. The error does not contain the token."""
    if problem := find_header_problem(token):
        raise ClientSettingsError(
            f"the token {problem}: pass only the SecretID of the token with --token or WHARF_TOKEN, also if it comes from a file"
        )


def build_headers(settings: ClientSettings) -> dict[str, str]:
    """Return the headers that authenticate the client, at a proxy in front of the servers and at the servers.

    Raises `ClientSettingsError` if the token cannot be sent.
    """
    check_token(settings.token)
    return _build_proxy_headers(settings) | ({"x-cluster-token": settings.token} if settings.token else {})


def _check_tls_files(settings: ClientSettings) -> None:
    """Raise `ClientSettingsError` if a file for TLS cannot be read, or a key is set without its certificate.

    OpenSSL's own errors do not name the file.
    """
    for file, sources in (
        (settings.ca_file, "--ca-cert, WHARF_CACERT"),
        (settings.cert_file, "--client-cert, WHARF_CLIENT_CERT"),
        (settings.key_file, "--client-key, WHARF_CLIENT_KEY"),
    ):
        try:
            if file:
                with open(file, "rb"):
                    pass
        except OSError as error:
            raise ClientSettingsError(f"cannot read {file} ({sources}): {error.strerror}") from error
    if settings.key_file and not settings.cert_file:
        raise ClientSettingsError("--client-key is set without --client-cert (WHARF_CLIENT_CERT)")


def build_tls_context(settings: ClientSettings) -> ssl.SSLContext:
    """Return the TLS context with the trusted certificates and the client certificate of the settings.

    `skip_verify` turns the check of server certificates off. Raises `ClientSettingsError` if a file cannot be used.
    """
    _check_tls_files(settings)
    try:
        return get_client_context(_describe_tls(settings, cert_file=settings.cert_file, key_file=settings.key_file))
    except (OSError, ssl.SSLError) as error:
        raise ClientSettingsError(_explain_tls_error(settings, error)) from error


def _describe_tls(settings: ClientSettings, *, cert_file: str = "", key_file: str = "") -> ClientTls:
    return ClientTls(
        ca_file=settings.ca_file,
        ca_path=settings.ca_path,
        cert_file=cert_file,
        key_file=key_file,
        is_verified=not settings.skip_verify,
    )


def _explain_tls_error(settings: ClientSettings, error: Exception) -> str:
    """Return which files cannot be used, and why. `error` is that of all files together, which OpenSSL does not name."""
    try:
        get_client_context(_describe_tls(settings))
    except (OSError, ssl.SSLError) as authority_error:
        authorities = " or ".join(file for file in (settings.ca_file, settings.ca_path) if file)
        return f"cannot use {authorities} (--ca-cert, WHARF_CACERT) as certificates of authorities: {authority_error}"
    key = f"with the key {settings.key_file}" if settings.key_file else "without a key file (--client-key)"
    return f"cannot use {settings.cert_file} (--client-cert, WHARF_CLIENT_CERT) as client certificate {key}: {error}"
