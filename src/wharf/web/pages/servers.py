"""The page of the servers."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from wharf.contract.client.errors import RequestRefused
from wharf.contract.client.transport import Unreachable
from wharf.contract.wire.operator import AutopilotServer, ScheduledSnapshots
from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.views.servers import FAILED, build_servers_view
from wharf.web.views.snapshots import build_snapshots_view

SNAPSHOTS_TIMEOUT_S: Final = 2.0
"""How long the page waits for what a server knows of its snapshots. Without an answer it shows the rest."""
MAX_SERVERS: Final = 20
"""Limits the requests of one page. A cluster has three or five servers."""


async def show_servers(request: PageRequest) -> Page | Redirect:
    """Show the servers, how far each has read the log, the size of the state, and the last snapshots."""
    health, sizes = await asyncio.gather(request.client.operator.health(), request.client.operator.read_state())
    found = await _read_snapshots(request, health.servers)
    snapshots = build_snapshots_view(health.servers, found, sizes.index, request.now_ns)
    return Page(
        "servers.html",
        "Servers",
        build_servers_view(health, sizes, snapshots, request.now_ns),
        section="cluster",
        command="wharf server members",
        api_path="/v1/operator/autopilot/health",
    )


async def _read_snapshots(
    request: PageRequest, servers: Sequence[AutopilotServer]
) -> Mapping[str, ScheduledSnapshots | None]:
    """Return the snapshots of each server by its ID; `None` for one that does not answer."""
    reachable = [server for server in servers if server.serf_status != FAILED][:MAX_SERVERS]

    async def read(server_id: str) -> ScheduledSnapshots | None:
        try:
            async with asyncio.timeout(SNAPSHOTS_TIMEOUT_S):
                return await request.client.operator.snapshots(server_id=server_id)
        except (RequestRefused, Unreachable, TimeoutError):
            return None

    replies = await asyncio.gather(*(read(server.id) for server in reachable))
    return {server.id: reply for server, reply in zip(reachable, replies, strict=True)}


ROUTES: Final = (Route("servers", show_servers),)
