"""The list of node pools and the page of one."""

import json
from typing import Final

import msgspec

from wharf.contract.model.node_pools import (
    ALL_NODE_POOL,
    BUILT_IN_NODE_POOLS,
    NodePool,
    NodePoolSchedulerConfiguration,
)
from wharf.web.rendering import build_link
from wharf.web.views.field_errors import FormView
from wharf.web.views.listing import ListView

INHERITED: Final = "as in the cluster"
ALGORITHM_CHOICES: Final = (
    ("", INHERITED),
    ("binpack", "binpack: fill nodes that are in use first"),
    ("spread", "spread: use the emptiest nodes first"),
)
OVERSUBSCRIPTION_CHOICES: Final = (("", INHERITED), ("yes", "allowed"), ("no", "not allowed"))
IS_ALLOWED: Final = {"yes": True, "no": False}
"""The settings for the choices of a form. All others stand for that of the cluster."""
TEXT_BY_ALLOWED: Final[dict[bool | None, str]] = {True: "yes", False: "no", None: ""}
FIELD_HINTS: Final = (
    ("invalid name", "name"),
    ("modifying", "name"),
    ("description", "description"),
    ("algorithm", "algorithm"),
)
"""Parts of the texts of mistakes, and their fields."""
NEW_POOL_FORM: Final = FormView({})


class PoolRow(msgspec.Struct, frozen=True):
    """A node pool in the list."""

    name: str
    url: str
    description: str
    nodes_url: str
    jobs_url: str


class PoolListView(msgspec.Struct, frozen=True):
    """The list of node pools, with the form that creates one."""

    list: ListView[PoolRow]
    form: FormView
    algorithms: tuple[tuple[str, str], ...] = ALGORITHM_CHOICES
    oversubscription: tuple[tuple[str, str], ...] = OVERSUBSCRIPTION_CHOICES


class PoolView(msgspec.Struct, frozen=True):
    """The page of a node pool."""

    row: PoolRow
    facts: tuple[tuple[str, str], ...]
    form: FormView
    is_changeable: bool
    """Not the built-in ones."""
    algorithms: tuple[tuple[str, str], ...] = ALGORITHM_CHOICES
    oversubscription: tuple[tuple[str, str], ...] = OVERSUBSCRIPTION_CHOICES


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


def build_pool_view(pool: NodePool, refused: FormView | None = None) -> PoolView:
    """Return the page of a node pool. `refused`: its form, if it was refused."""
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
    form = refused if refused is not None else FormView(_list_values(pool))
    return PoolView(build_pool_row(pool), tuple(facts), form, pool.name not in BUILT_IN_NODE_POOLS)


def _list_values(pool: NodePool) -> dict[str, str]:
    """Return the settings of a node pool as its form has them."""
    settings = pool.scheduler_configuration or NodePoolSchedulerConfiguration()
    return {
        "description": pool.description,
        "algorithm": str(settings.scheduler_algorithm),
        "oversubscription": TEXT_BY_ALLOWED[settings.memory_oversubscription_enabled],
    }
