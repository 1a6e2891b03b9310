"""The node process: for now fake nodes, which say so."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from wharf.agent.client_tls import client_tls, renew_client_tls
from wharf.agent.identity import name_of
from wharf.agent.life import Life
from wharf.client import ONCE, AsyncClient
from wharf.client.http import HttpExchange
from wharf.node.fake import FakeMachine, FakeNode, NodeIdentity
from wharf.world import World

log = logging.getLogger(__name__)

IDENTITIES_FILE: Final = "nodes.json"


async def run(life: Life) -> None:
    settings = life.order.settings
    tls = client_tls(settings.tls)
    life.on_reload(lambda new: renew_client_tls(tls, new.tls))
    addresses = settings.client.servers or (life.order.address,)
    exchanges = [
        HttpExchange(
            address if "://" in address else f"{'https' if tls else 'http'}://{address}",
            # Where access control is on, a new node is introduced by it; later it is known by its own secret.
            token=settings.client.intro_token.reveal() or life.order.own_node_secret,
            tls=tls,
        )
        for address in addresses
    ]
    client = AsyncClient(life.world, exchanges, retries=ONCE)  # Nodes say everything again themselves.
    # The real node is not built yet; a configuration that asks for none by number gets one that is fake.
    count = settings.client.fake_nodes or 1
    name = name_of(settings)
    identities = kept_identities(life.world, Path(life.order.data_folder) / IDENTITIES_FILE, count)
    nodes = [
        FakeNode(
            life.world,
            client,
            FakeMachine(
                name=name if count == 1 else f"{name}-{number}",
                datacenter=settings.datacenter,
                node_class=settings.client.node_class,
            ),
            identity=identities[number - 1],
        )
        for number in range(1, count + 1)
    ]
    running = [life.world.start(node.run(), name=f"node {node.id}") for node in nodes]
    log.warning(
        "the real node is not built yet: what runs here is fake, takes work and reports it as running, and starts nothing",
        extra={"nodes": str(count)},
    )
    life.ready(fake=str(count))
    await life.first_of([life.world.start(life.stopping.wait(), name="asked to stop"), *running])
    await asyncio.gather(*running, return_exceptions=True)
    await client.close()


def kept_identities(world: World, file: Path, count: int) -> list[NodeIdentity]:
    """Ids and secrets of so many nodes: those that are kept in the file, and new ones that are added to it."""
    known = msgspec.json.decode(file.read_bytes(), type=list[NodeIdentity]) if file.exists() else []
    missing = [NodeIdentity(world.new_id(), world.new_secret()) for _ in range(len(known), count)]
    if missing:
        draft = file.with_suffix(".new")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as writing:
            writing.write(msgspec.json.encode(known + missing))
        draft.replace(file)
    return (known + missing)[:count]
