"""From settings to a client that talks over sockets. What is heavy is loaded here, when somebody connects."""

import ssl
from base64 import b64encode
from typing import Any, Final

from wharf.contract.client.async_client import AsyncClient
from wharf.contract.client.flow import ClientDefaults, RetryPolicy
from wharf.contract.client.settings import ClientSettings, read_settings
from wharf.contract.client.sync_client import SyncClient
from wharf.world import RealWorld, World

SCHEMES: Final = ("http://", "https://", "unix://")


class ClientSettingsError(Exception):
    """Settings that lead nowhere: a file that is missing, or holds no certificate, an address of nothing."""


def connect(
    settings: ClientSettings | None = None, *, world: World | None = None, retry_policy: RetryPolicy | None = None
) -> SyncClient:
    """A client whose calls give what the servers say. Without settings those of the environment. Raises ClientSettingsError."""
    from wharf.contract.client.http_transport import SyncHttpTransport

    settings = settings or read_settings()
    exchanges = [SyncHttpTransport(address, **_options(settings, address)) for address in settings.addresses]
    return SyncClient(world or RealWorld(), exchanges, defaults=_defaults(settings), retry_policy=retry_policy)


def connect_async(
    settings: ClientSettings | None = None, *, world: World | None = None, retry_policy: RetryPolicy | None = None
) -> AsyncClient:
    """The same, with calls that are awaited."""
    from wharf.contract.client.http_transport import HttpTransport

    settings = settings or read_settings()
    exchanges = [HttpTransport(address, **_options(settings, address)) for address in settings.addresses]
    return AsyncClient(world or RealWorld(), exchanges, defaults=_defaults(settings), retry_policy=retry_policy)


def _defaults(settings: ClientSettings) -> ClientDefaults:
    return ClientDefaults(settings.namespace, settings.region, settings.stale)


def _options(settings: ClientSettings, address: str) -> dict[str, Any]:  # What both exchanges take.
    if not address.startswith(SCHEMES):
        raise ClientSettingsError(f"{address} is no address of a server: it begins with http://, https:// or unix://")
    headers = _by_proxy(settings)
    return {
        "token": settings.token,
        "tls": build_tls_context(settings) if address.startswith("https://") else None,
        "server_name": settings.server_name,
        "headers": headers,
    }


def _by_proxy(settings: ClientSettings) -> dict[str, str]:
    if not settings.http_auth:
        return {}
    return {"authorization": f"Basic {b64encode(settings.http_auth.encode()).decode()}"}


def build_headers(settings: ClientSettings) -> dict[str, str]:
    """What says who asks."""
    return _by_proxy(settings) | ({"x-cluster-token": settings.token} if settings.token else {})


def build_tls_context(settings: ClientSettings) -> ssl.SSLContext:
    """Whose certificates are believed, and what is shown of us. Raises ClientSettingsError."""
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None, capath=settings.ca_path or None)
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file or None)
    except (OSError, ssl.SSLError) as error:
        files = [file for file in (settings.ca_file, settings.ca_path, settings.cert_file, settings.key_file) if file]
        raise ClientSettingsError(f"cannot use {', '.join(files)} for TLS: {error}") from error
    if settings.skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
