"""Removes all networks of nodes that tests have ended: `python -m tests.node.networks.remove_networks NODE_ID...`."""

import asyncio
import sys

from wharf.node.networks import CniPlugins, NetworkManager
from wharf.node.node_mark import NodeMark
from wharf.world import RealWorld


async def remove_all_networks(node: str) -> None:
    """Remove networks that failed tests have left on the machine."""
    networks = NetworkManager(RealWorld(), CniPlugins(""), NodeMark(node))
    networks.sweep_unknown_networks(())
    await networks.close()


if __name__ == "__main__":
    for node in sys.argv[1:]:
        asyncio.run(remove_all_networks(node))
