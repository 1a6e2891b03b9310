"""The ids and secrets of the nodes of this agent: of the real node in its state folder, of fake nodes in one file."""

from pathlib import Path
from typing import Final

import msgspec

from wharf.node.credentials import NodeCredentials
from wharf.world import World
from wharf.world.durable_file import replace_file

REAL_NODE_IDENTITY_FILE: Final = "node.json"
FAKE_NODE_IDENTITIES_FILE: Final = "nodes.json"


def load_or_create_own_identity(world: World, state_folder: Path) -> NodeCredentials:
    """Return the id and secret of the real node. At its first start they are created and stored in the state folder."""
    file = state_folder / REAL_NODE_IDENTITY_FILE
    if file.exists():
        return msgspec.json.decode(file.read_bytes(), type=NodeCredentials)
    identity = NodeCredentials(world.new_id(), world.new_secret())
    replace_file(file, msgspec.json.encode(identity))
    return identity


def read_own_node_id(state_folder: Path) -> str:
    """Return the id of the real node, or an empty text if the node has never started here."""
    try:
        return msgspec.json.decode((state_folder / REAL_NODE_IDENTITY_FILE).read_bytes(), type=NodeCredentials).id
    except OSError:
        return ""


def load_or_create_fake_node_identities(world: World, file: Path, count: int) -> list[NodeCredentials]:
    """Return the ids and secrets of `count` fake nodes: those stored in `file`, then new ones if it has too few.

    New ones are added to the file. A fake node is simulated: it reports tasks as running without starting them.
    """
    stored = msgspec.json.decode(file.read_bytes(), type=list[NodeCredentials]) if file.exists() else []
    created = [NodeCredentials(world.new_id(), world.new_secret()) for _ in range(len(stored), count)]
    if created:
        replace_file(file, msgspec.json.encode(stored + created))
    return (stored + created)[:count]
