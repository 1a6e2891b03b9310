"""What api and brain have in common: a door to the log, a replica that follows it, and who this server is."""

import asyncio
import logging
from pathlib import Path
from typing import Final

from wharf.agent.identity import name_of, server_id
from wharf.agent.life import Life
from wharf.agent.roles.engine import engine_for, where
from wharf.engines.port import Engine, Unavailable
from wharf.server.server import Identity, Server

OPEN_AGAIN_S: Final = 2.0
BRAIN_SOCKET: Final = "brain.sock"

log = logging.getLogger(__name__)


def brain_socket(life: Life) -> Path:
    return Path(life.order.data_folder) / BRAIN_SOCKET


def make_server(life: Life) -> Server:
    settings = life.order.settings
    address = settings.advertise.http or life.order.address.partition("://")[2]
    identity = Identity(
        member_id=server_id(life.world, Path(life.order.data_folder)),
        name=name_of(settings),
        region=settings.region,
        datacenter=settings.datacenter,
        address=address,
    )
    server = Server(life.world, engine_for(life.order, life.world), identity)
    life.tell_facts(lambda: facts_of(server))
    return server


async def open_log(life: Life, engine: Engine) -> bool:
    """Wait until the log can be reached, saying so. False when the process should stop instead."""
    while not life.stopping.is_set():
        try:
            await engine.open()
        except Unavailable as error:
            log.warning("the log cannot be reached; trying again", extra={"log": where(life.order), "why": str(error)})
            try:
                async with asyncio.timeout(OPEN_AGAIN_S):
                    await life.stopping.wait()
            except TimeoutError:
                continue
        else:
            return True
    return False


def facts_of(server: Server) -> dict[str, str]:
    """Sizes of the state, for debug archives. Called from another thread: it only counts."""
    replica = server.replica
    rows = {f"records in {name}": str(replica.count(table)) for name, table in replica.tables.items()}
    return {"log index": str(replica.index)} | {name: count for name, count in rows.items() if count != "0"}
