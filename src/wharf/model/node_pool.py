"""Node pools: named sets of nodes that jobs choose, each with its own say on scheduling."""

from wharf.model.durations import HOUR
from wharf.model.naming import POOL_NAME, description_problems, is_pool_name
from wharf.model.record import Record
from wharf.model.scheduler_configuration import SchedulerAlgorithm

ALL = "all"
"""The pool of every node. Jobs may name it, nodes may not."""
DEFAULT = "default"
BUILT_IN = (ALL, DEFAULT)

DEFAULT_IDENTITY_TTL = 24 * HOUR


class NodePoolSchedulerConfiguration(Record):
    """What the pool says differently from the cluster; empty and null inherit."""

    scheduler_algorithm: str = SchedulerAlgorithm.INHERITED
    memory_oversubscription_enabled: bool | None = None


class NodePool(Record):
    name: str
    description: str = ""
    meta: dict[str, str] | None = None
    scheduler_configuration: NodePoolSchedulerConfiguration | None = None
    node_identity_ttl: int = DEFAULT_IDENTITY_TTL
    hash: bytes = b""
    create_index: int = 0
    modify_index: int = 0


def problems(pool: NodePool) -> list[str]:
    """Everything that is wrong with a pool somebody wants to write."""
    if pool.name in BUILT_IN:
        return [f'modifying node pool "{pool.name}" is not allowed']
    found = []
    if not is_pool_name(pool.name):
        found.append(f'invalid name "{pool.name}". Must match regex {POOL_NAME}')
    found += description_problems(pool.description)
    own = pool.scheduler_configuration
    if own is not None and own.scheduler_algorithm not in list(SchedulerAlgorithm):
        found.append(f"invalid scheduler algorithm: {own.scheduler_algorithm}")
    if pool.node_identity_ttl <= 0:
        found.append("node identity TTL must be positive")
    return found
