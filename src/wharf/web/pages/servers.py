"""The page of the servers."""

import asyncio
from typing import Final

from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.views.servers import build_servers_view


async def show_servers(request: PageRequest) -> Page | Redirect:
    """Show the servers, how far each has read the log, and the size of the state."""
    health, sizes = await asyncio.gather(request.client.operator.health(), request.client.operator.read_state())
    return Page(
        "servers.html",
        "Servers",
        build_servers_view(health, sizes, request.now_ns),
        section="cluster",
        command="wharf server members",
        api_path="/v1/operator/autopilot/health",
    )


ROUTES: Final = (Route("servers", show_servers),)
