"""Node pools: named sets of nodes with optional scheduling settings, and the checks before one is written."""

from wharf.contract.model.body_limits import cut_echo
from wharf.contract.model.names import NODE_POOL_NAME_REGEX, is_valid_node_pool_name, list_description_problems
from wharf.contract.model.operator.scheduler_configuration import SchedulerAlgorithm
from wharf.contract.model.record import Record
from wharf.contract.model.times import HOUR

ALL_NODE_POOL = "all"
"""The pool that contains every node. A job may select it; a node cannot be registered in it."""
DEFAULT_NODE_POOL = "default"
BUILT_IN_NODE_POOLS = (ALL_NODE_POOL, DEFAULT_NODE_POOL)

DEFAULT_NODE_IDENTITY_TTL_NS = 24 * HOUR


class NodePoolSchedulerConfiguration(Record):
    """Scheduling settings of a node pool that take precedence over the cluster's."""

    scheduler_algorithm: str = SchedulerAlgorithm.INHERITED  # A `SchedulerAlgorithm`; empty: as in the cluster.
    memory_oversubscription_enabled: bool | None = None  # Null: as in the cluster.


class NodePool(Record):
    """A named set of nodes. A job is placed in one pool."""

    name: str
    description: str = ""
    meta: dict[str, str] | None = None
    scheduler_configuration: NodePoolSchedulerConfiguration | None = None
    node_identity_ttl: int = DEFAULT_NODE_IDENTITY_TTL_NS  # ns; the lifetime of the identity tokens of its nodes.
    hash: bytes = b""  # A digest of the content.
    create_index: int = 0
    modify_index: int = 0


def list_node_pool_problems(pool: NodePool) -> list[str]:
    """Return an error text for each thing that is wrong with a submitted node pool; empty if it is valid.

    Built-in pools cannot be changed.
    """
    if pool.name in BUILT_IN_NODE_POOLS:
        return [f'modifying node pool "{pool.name}" is not allowed']
    found = []
    if not is_valid_node_pool_name(pool.name):
        found.append(f'invalid name "{pool.name}". Must match regex {NODE_POOL_NAME_REGEX}')
    found += list_description_problems(pool.description)
    configuration = pool.scheduler_configuration
    if configuration is not None and configuration.scheduler_algorithm not in list(SchedulerAlgorithm):
        found.append(f"invalid scheduler algorithm: {cut_echo(configuration.scheduler_algorithm)}")
    if pool.node_identity_ttl <= 0:
        found.append("node identity TTL must be positive")
    return found
