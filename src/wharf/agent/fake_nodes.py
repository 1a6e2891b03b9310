"""The fake nodes of an agent, and the file that keeps their identities across restarts."""

from pathlib import Path
from typing import Final

import msgspec

from wharf.agent.identity import get_agent_name
from wharf.config.settings import AgentSettings
from wharf.contract.client import AsyncClient
from wharf.node.credentials import NodeCredentials
from wharf.node.fake_node import FakeMachine, FakeNode
from wharf.world import World
from wharf.world.durable_file import replace_file

IDENTITIES_FILE: Final = "nodes.json"


def build_fake_nodes(world: World, client: AsyncClient, settings: AgentSettings, data_folder: Path) -> list[FakeNode]:
    """Return the fake nodes of this agent, as many as `client.fake_nodes` requests."""
    count = settings.client.fake_nodes
    if not count:
        return []
    identities = load_fake_identities(world, data_folder / IDENTITIES_FILE, count)
    return [
        FakeNode(
            world,
            client,
            FakeMachine(
                name=f"{get_agent_name(settings)}-{number}",
                datacenter=settings.datacenter,
                node_class=settings.client.node_class,
            ),
            identity=identity,
        )
        for number, identity in enumerate(identities, 1)
    ]


def load_fake_identities(world: World, file: Path, count: int) -> list[NodeCredentials]:
    """Return `count` identities: those stored in `file`, and new ones if it has too few. New ones are stored."""
    stored = msgspec.json.decode(file.read_bytes(), type=list[NodeCredentials]) if file.exists() else []
    created = [NodeCredentials(world.new_id(), world.new_secret()) for _ in range(len(stored), count)]
    if created:
        replace_file(file, msgspec.json.encode(stored + created))
    return (stored + created)[:count]
