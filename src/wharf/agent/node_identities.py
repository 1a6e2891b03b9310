"""The ids and secrets of the nodes of this agent: of the real node in its state folder, of fake nodes in one file."""

from pathlib import Path
from typing import Final

import msgspec

from wharf.node.credentials import NodeCredentials
from wharf.node.node_mark import NODE_IDENTITY_FILE
from wharf.world import World
from wharf.world.durable_file import replace_file
from wharf.world.stored_json import DamagedFile, read_stored_json

FAKE_NODE_IDENTITIES_FILE: Final = "nodes.json"


def load_or_create_own_identity(world: World, state_folder: Path) -> NodeCredentials:
    """Return the id and secret of the real node. At its first start they are created and stored in the state folder.

    Raises `DamagedFile` and `OSError`.
    """
    file = state_folder / NODE_IDENTITY_FILE
    stored = read_stored_json(
        file,
        NodeCredentials,
        remedy="restore it from a copy, or delete it to register as a new node, whose servers replace the former one's tasks",
    )
    if stored is not None:
        return stored
    identity = NodeCredentials(world.new_id(), world.new_secret())
    replace_file(file, msgspec.json.encode(identity))
    return identity


def read_own_node_id(state_folder: Path) -> str:
    """Return the id of the real node, or an empty text if the node has never started here or its file is damaged."""
    try:
        identity = read_stored_json(state_folder / NODE_IDENTITY_FILE, NodeCredentials, remedy="")
    except DamagedFile:  # The node itself reports it.
        return ""
    return identity.id if identity is not None else ""


def load_or_create_fake_node_identities(world: World, file: Path, count: int) -> list[NodeCredentials]:
    """Return the ids and secrets of `count` fake nodes: those stored in `file`, then new ones if it has too few.

    New ones are added to the file. Raises `DamagedFile` and `OSError`. A fake node is simulated: it reports tasks as running without starting them.
    """
    remedy = "restore it from a copy, or delete it: then the fake nodes get new ids"
    stored = read_stored_json(file, list[NodeCredentials], remedy=remedy) or []
    created = [NodeCredentials(world.new_id(), world.new_secret()) for _ in range(len(stored), count)]
    if created:
        replace_file(file, msgspec.json.encode(stored + created))
    return (stored + created)[:count]
