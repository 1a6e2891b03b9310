"""The way to the authoritative region, as the configuration has it: what the brain copies from there."""

from typing import TYPE_CHECKING

from wharf.agent.client_tls import client_tls
from wharf.agent.life import Life
from wharf.server.brain import Brain
from wharf.server.copying import Copying
from wharf.server.server import Server

if TYPE_CHECKING:
    from wharf.client import AsyncClient


def copy_from_elsewhere(life: Life, server: Server, brain: Brain) -> "AsyncClient | None":
    """None where this region is the authoritative one, or access control is off."""
    settings = life.order.settings
    region = settings.server.authoritative_region
    if not settings.acl.enabled or region in ("", settings.region):
        return None
    # What is slow to load is loaded only where another region is copied.
    from wharf.client import ONCE, AsyncClient
    from wharf.client.http import HttpExchange

    tls = client_tls(settings.tls)
    scheme = "https" if tls is not None else "http"
    addresses = [
        address if "://" in address else f"{scheme}://{address}" for address in settings.regions[region].servers
    ]
    token = settings.acl.replication_token.reveal()
    client = AsyncClient(life.world, [HttpExchange(each, token=token, tls=tls) for each in addresses], retries=ONCE)
    Copying(brain, server.access.keyring, client, region=region)
    return client
