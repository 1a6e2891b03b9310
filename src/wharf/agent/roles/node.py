"""The node process: the agent of the node, and the fake nodes that were asked for beside it."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from wharf.agent.client_tls import client_tls, renew_client_tls
from wharf.agent.fake_nodes import fake_nodes, own_identity
from wharf.agent.identity import name_of
from wharf.agent.life import CannotStart, Life
from wharf.client import ONCE, AsyncClient
from wharf.client.doors import Door, ServerDoor
from wharf.client.http import HttpExchange
from wharf.client.sockets import SocketPassage, WebSocketPassage
from wharf.node.agent.node import NodeAgent
from wharf.node.agent.places import NodePlaces

log = logging.getLogger(__name__)

REGISTERED_WITHIN_S: Final = 2.0
END_BEYOND_S: Final = 5.0
"""What tasks are given to end beyond the longest time that they may ask for."""


async def run(life: Life) -> None:
    settings = life.order.settings
    tls = client_tls(settings.tls)
    life.on_reload(lambda new: renew_client_tls(tls, new.tls))
    scheme = "https" if tls else "http"
    addresses = [
        address if "://" in address else f"{scheme}://{address}"
        for address in settings.client.servers or (life.order.address,)
    ]
    sockets = [WebSocketPassage(address, tls=tls if address.startswith("https") else None) for address in addresses]
    doors = [ServerDoor(address, tls=tls) for address in addresses]
    exchanges = [
        HttpExchange(
            address,
            # Where access control is on, a new node is introduced by it; later it is known by its own secret.
            token=settings.client.intro_token.reveal() or life.order.own_node_secret,
            tls=tls,
        )
        for address in addresses
    ]
    client = AsyncClient(life.world, exchanges, retries=ONCE)  # Nodes say everything again themselves.
    data_folder = Path(life.order.data_folder)
    try:
        node = _node(life, client, data_folder, sockets, doors)
    except OSError as error:
        raise CannotStart(f"the node's folder {error.filename} cannot be used: {error.strerror}") from error
    details = {"drivers": ", ".join(await node.working_drivers())}
    fakes = fake_nodes(life.world, client, settings, data_folder)
    if fakes:
        log.warning(
            "fake nodes run here: they take work and report it as running, and start nothing",
            extra={"nodes": str(len(fakes))},
        )
        details["fake"] = str(len(fakes))
    is_ready = asyncio.Event()
    running = [life.world.start(node.run(is_ready.set), name="node")]
    running += [life.world.start(fake.run(), name=f"node {fake.id}") for fake in fakes]
    await is_ready.wait()
    if (
        not settings.client.servers
    ):  # Its server is of this agent: who reads that all is ready may want work placed at once.
        with suppress(TimeoutError):
            await asyncio.wait_for(node.talk.is_registered.wait(), REGISTERED_WITHIN_S)
    life.ready(**details)
    stopping = life.world.start(life.stopping.wait(), name="asked to stop")
    done, _ = await asyncio.wait([stopping, *running], return_when=asyncio.FIRST_COMPLETED)
    if stopping in done and settings.client.drain_on_shutdown.enabled:
        await node.leave()
    if stopping in done and settings.client.stop_on_shutdown:
        try:
            await asyncio.wait_for(node.end_all(), settings.client.max_kill_timeout.s + END_BEYOND_S)
        except TimeoutError:
            log.error(
                "tasks did not end in time and are left running", extra={"tasks": str(len(node.works.live_tasks()))}
            )
    await life.first_of([stopping, *running])
    await client.close()


def _node(
    life: Life, client: AsyncClient, data_folder: Path, sockets: Sequence[SocketPassage], doors: Sequence[Door]
) -> NodeAgent:
    settings = life.order.settings
    places = NodePlaces(
        name=name_of(settings),
        datacenter=settings.datacenter,
        region=settings.region,
        state_folder=Path(settings.client.state_dir) if settings.client.state_dir else data_folder / "node",
        allocation_folder=Path(settings.client.alloc_dir) if settings.client.alloc_dir else data_folder / "alloc",
    )
    places.state_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    identity = own_identity(life.world, places.state_folder)
    return NodeAgent(life.world, client, settings.client, places, identity, sockets, doors)
