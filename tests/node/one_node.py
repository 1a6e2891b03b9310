"""Runs a node agent alone, without the agent process around it: `python -m tests.node.one_node ADDRESS FOLDER
TRACKING_METHOD`.
"""

import asyncio
import logging
import sys
from pathlib import Path

from wharf.agent.node_identities import load_or_create_own_identity
from wharf.contract.client import NO_RETRIES, AsyncClient
from wharf.contract.client.http_transport import HttpTransport
from wharf.contract.client.relay.dialers import ServerDialer
from wharf.contract.client.relay.websockets import WebSocketRelay
from wharf.node.agent.node_agent import NodeAgent
from wharf.node.settings import (
    DockerDriverSettings,
    DriversSettings,
    HostVolumeSettings,
    NodeLocation,
    NodeSettings,
    RawExecSettings,
)
from wharf.world import RealWorld, World


async def main(address: str, folder: Path, tracking_method: str, world: World) -> None:
    """Run a node agent with host volumes, drivers and networks from the folder."""
    client = AsyncClient(world, [HttpTransport(address)], retry_policy=NO_RETRIES)
    state_folder = folder / "node"
    state_folder.mkdir(exist_ok=True)
    host_volumes = sorted((folder / "static").glob("*"))
    settings = NodeSettings(
        drivers=DriversSettings(
            raw_exec=RawExecSettings(enabled=True),
            docker=DockerDriverSettings(socket=engine.read_text() if (engine := folder / "engine").exists() else ""),
        ),
        reap_foreign=(folder / "reap").exists(),
        finds_left_overs_by=tracking_method,
        cni_path=str(folder / "cni" / "bin"),
        cni_config_dir=str(folder / "cni" / "config"),
        options={"lamps.folder": str(folder / "lamps")},
        host_volume={
            path.name: HostVolumeSettings(path=str(path), read_only=path.name.startswith("frozen"))
            for path in host_volumes
        },
    )
    location = NodeLocation(
        name="one", datacenter="dc1", region="global", state_folder=state_folder, allocation_folder=folder / "alloc"
    )
    node = NodeAgent(
        world,
        client,
        settings,
        location,
        load_or_create_own_identity(world, state_folder),
        [WebSocketRelay(address)],
        [ServerDialer(address)],
    )
    await node.run(lambda: None)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], RealWorld()))
