"""The fake nodes that run beside the real one, and who they are from one start to the next."""

from pathlib import Path
from typing import Final

import msgspec

from wharf.agent.identity import name_of
from wharf.client import AsyncClient
from wharf.config.settings import Settings
from wharf.node.agent.servers import NodeIdentity
from wharf.node.fake import FakeMachine, FakeNode
from wharf.node.kept_file import keep
from wharf.world import World

IDENTITIES_FILE: Final = "nodes.json"
REAL_IDENTITY_FILE: Final = "node.json"


def fake_nodes(world: World, client: AsyncClient, settings: Settings, data_folder: Path) -> list[FakeNode]:
    count = settings.client.fake_nodes
    if not count:
        return []
    identities = kept_identities(world, data_folder / IDENTITIES_FILE, count)
    return [
        FakeNode(
            world,
            client,
            FakeMachine(
                name=f"{name_of(settings)}-{number}",
                datacenter=settings.datacenter,
                node_class=settings.client.node_class,
            ),
            identity=identity,
        )
        for number, identity in enumerate(identities, 1)
    ]


def kept_identities(world: World, file: Path, count: int) -> list[NodeIdentity]:
    """Those of the file, and new ones where it has too few."""
    known = msgspec.json.decode(file.read_bytes(), type=list[NodeIdentity]) if file.exists() else []
    missing = [NodeIdentity(world.new_id(), world.new_secret()) for _ in range(len(known), count)]
    if missing:
        keep(file, msgspec.json.encode(known + missing))
    return (known + missing)[:count]


def own_identity(world: World, state_folder: Path) -> NodeIdentity:
    """The real node's, made at its first start."""
    file = state_folder / REAL_IDENTITY_FILE
    if file.exists():
        return msgspec.json.decode(file.read_bytes(), type=NodeIdentity)
    identity = NodeIdentity(world.new_id(), world.new_secret())
    keep(file, msgspec.json.encode(identity))
    return identity


def own_node_id(state_folder: Path) -> str:
    """The real node's id; empty where it has not been started here yet."""
    try:
        return msgspec.json.decode((state_folder / REAL_IDENTITY_FILE).read_bytes(), type=NodeIdentity).id
    except OSError:
        return ""
