"""A node's agent in a process of its own, without the tree around it: `python -m tests.node.one_node ADDRESS FOLDER`."""

import asyncio
import logging
import sys
from pathlib import Path

from wharf.agent.fake_nodes import own_identity
from wharf.client import ONCE, AsyncClient
from wharf.client.doors import ServerDoor
from wharf.client.http import HttpExchange
from wharf.client.sockets import WebSocketPassage
from wharf.node.agent.node import NodeAgent
from wharf.node.agent.places import NodePlaces
from wharf.node.settings import ClientSettings, DriversSettings, HostVolumeSettings, RawExecSettings
from wharf.world import RealWorld, World


async def main(address: str, folder: Path, way: str, world: World) -> None:
    client = AsyncClient(world, [HttpExchange(address)], retries=ONCE)
    state = folder / "node"
    state.mkdir(exist_ok=True)
    static = sorted((folder / "static").glob("*"))
    settings = ClientSettings(
        drivers=DriversSettings(raw_exec=RawExecSettings(enabled=True)),
        finds_left_overs_by=way,
        cni_path=str(folder / "cni" / "bin"),
        cni_config_dir=str(folder / "cni" / "config"),
        options={"lamps.folder": str(folder / "lamps")},
        host_volume={
            path.name: HostVolumeSettings(path=str(path), read_only=path.name.startswith("frozen")) for path in static
        },
    )
    places = NodePlaces(
        name="one", datacenter="dc1", region="global", state_folder=state, allocation_folder=folder / "alloc"
    )
    node = NodeAgent(
        world,
        client,
        settings,
        places,
        own_identity(world, state),
        [WebSocketPassage(address)],
        [ServerDoor(address)],
    )
    await node.run(lambda: None)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], RealWorld()))
