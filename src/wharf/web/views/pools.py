"""The list of node pools and the page of one."""

import json
from typing import Final

import msgspec

from wharf.contract.model.node_pools import ALL_NODE_POOL, NodePool
from wharf.web.rendering import build_link

INHERITED: Final = "as in the cluster"


class PoolRow(msgspec.Struct, frozen=True):
    """A node pool in the list."""

    name: str
    url: str
    description: str
    nodes_url: str
    jobs_url: str


class PoolView(msgspec.Struct, frozen=True):
    """The page of a node pool."""

    row: PoolRow
    facts: tuple[tuple[str, str], ...]


def build_pool_row(pool: NodePool) -> PoolRow:
    """Return a node pool as the list shows it."""
    name = json.dumps(pool.name)  # A text of the filter language.
    return PoolRow(
        name=pool.name,
        url=build_link("pools", pool.name),
        description=pool.description,
        nodes_url=build_link("nodes", filter="" if pool.name == ALL_NODE_POOL else f"NodePool == {name}"),
        jobs_url=build_link("jobs", filter=f"NodePool == {name}"),
    )


def build_pool_view(pool: NodePool) -> PoolView:
    """Return the page of a node pool."""
    settings = pool.scheduler_configuration
    facts = []
    if settings is not None:
        oversubscription = settings.memory_oversubscription_enabled
        facts = [
            ("Nodes are chosen by", str(settings.scheduler_algorithm) or INHERITED),
            (
                "More memory than requested",
                INHERITED if oversubscription is None else "allowed" if oversubscription else "not allowed",
            ),
        ]
    facts += [(f"Note: {key}", value) for key, value in sorted((pool.meta or {}).items())]
    return PoolView(build_pool_row(pool), tuple(facts))
