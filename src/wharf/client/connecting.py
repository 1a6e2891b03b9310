"""From settings to a client that talks over sockets. What is heavy is loaded here, when somebody connects."""

import ssl
from base64 import b64encode
from typing import Any, Final

from wharf.client.async_client import AsyncClient
from wharf.client.flow import Defaults, Retries
from wharf.client.settings import ClientSettings, read_settings
from wharf.client.sync_client import SyncClient
from wharf.world import RealWorld, World

SCHEMES: Final = ("http://", "https://", "unix://")


class CannotConnect(Exception):
    """Settings that lead nowhere: a file that is missing, or holds no certificate, an address of nothing."""


def connect(
    settings: ClientSettings | None = None, *, world: World | None = None, retries: Retries | None = None
) -> SyncClient:
    """A client whose calls give what the servers say. Without settings those of the environment. Raises CannotConnect."""
    from wharf.client.http import SyncHttpExchange

    settings = settings or read_settings()
    exchanges = [SyncHttpExchange(address, **_options(settings, address)) for address in settings.addresses]
    return SyncClient(world or RealWorld(), exchanges, defaults=_defaults(settings), retries=retries)


def connect_async(
    settings: ClientSettings | None = None, *, world: World | None = None, retries: Retries | None = None
) -> AsyncClient:
    """The same, with calls that are awaited."""
    from wharf.client.http import HttpExchange

    settings = settings or read_settings()
    exchanges = [HttpExchange(address, **_options(settings, address)) for address in settings.addresses]
    return AsyncClient(world or RealWorld(), exchanges, defaults=_defaults(settings), retries=retries)


def _defaults(settings: ClientSettings) -> Defaults:
    return Defaults(settings.namespace, settings.region, settings.stale)


def _options(settings: ClientSettings, address: str) -> dict[str, Any]:  # What both exchanges take.
    if not address.startswith(SCHEMES):
        raise CannotConnect(f"{address} is no address of a server: it begins with http://, https:// or unix://")
    headers = _by_proxy(settings)
    return {
        "token": settings.token,
        "tls": tls_of(settings) if address.startswith("https://") else None,
        "server_name": settings.server_name,
        "headers": headers,
    }


def _by_proxy(settings: ClientSettings) -> dict[str, str]:
    if not settings.http_auth:
        return {}
    return {"authorization": f"Basic {b64encode(settings.http_auth.encode()).decode()}"}


def headers_of(settings: ClientSettings) -> dict[str, str]:
    """What says who asks."""
    return _by_proxy(settings) | ({"x-cluster-token": settings.token} if settings.token else {})


def tls_of(settings: ClientSettings) -> ssl.SSLContext:
    """Whose certificates are believed, and what is shown of us. Raises CannotConnect."""
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None, capath=settings.ca_path or None)
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file or None)
    except (OSError, ssl.SSLError) as error:
        files = [file for file in (settings.ca_file, settings.ca_path, settings.cert_file, settings.key_file) if file]
        raise CannotConnect(f"cannot use {', '.join(files)} for TLS: {error}") from error
    if settings.skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
