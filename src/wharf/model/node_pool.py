"""Node pools: named sets of nodes that jobs choose, each with its own say on scheduling."""

from wharf.model.record import Record
from wharf.model.scheduler_configuration import SchedulerAlgorithm

ALL = "all"
"""The pool of every node. Jobs may name it, nodes may not."""
DEFAULT = "default"
BUILT_IN = (ALL, DEFAULT)

DAY_NS = 24 * 3600 * 10**9


class NodePoolSchedulerConfiguration(Record):
    """What the pool says differently from the cluster; empty and null inherit."""

    scheduler_algorithm: SchedulerAlgorithm = SchedulerAlgorithm.INHERITED
    memory_oversubscription_enabled: bool | None = None


class NodePool(Record):
    name: str
    description: str = ""
    meta: dict[str, str] | None = None
    scheduler_configuration: NodePoolSchedulerConfiguration | None = None
    node_identity_ttl: int = DAY_NS
    hash: bytes = b""
    create_index: int = 0
    modify_index: int = 0
