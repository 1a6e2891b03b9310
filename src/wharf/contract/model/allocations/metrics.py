"""Metrics of a placement: how many nodes were evaluated, filtered and exhausted, and the scores.

For people and for explanations. Nothing here decides anything.
"""

from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.record import Record


class NodeScore(Record):
    """The scores of one node for a placement."""

    node_id: str
    scores: dict[str, float] | None = None  # Score by the name of the rule that computed it, such as "binpack".
    norm_score: float = 0.0  # The mean of the scores, by which nodes are ranked.


class AllocMetric(Record):
    """How a node was selected for a group: the nodes that were evaluated, excluded and full, and the scores.

    Failed selections for one group are combined into one record.
    """

    nodes_evaluated: int = 0
    nodes_filtered: int = 0  # Excluded by constraints.
    nodes_in_pool: int = 0
    node_pool: str = ""
    nodes_available: dict[str, int] | None = None  # Ready nodes by datacenter.
    class_filtered: dict[str, int] | None = None  # Excluded nodes by node class.
    constraint_filtered: dict[str, int] | None = None  # Excluded nodes by constraint.
    nodes_exhausted: int = 0  # With too few free resources.
    class_exhausted: dict[str, int] | None = None  # Such nodes by node class.
    dimension_exhausted: dict[str, int] | None = None  # Such nodes by resource, such as "memory".
    quota_exhausted: tuple[str, ...] | None = None  # The exceeded limits of the quota.
    # By task: the requested resources that the full nodes lacked.
    resources_exhausted: dict[str, Resources] | None = None
    scores: dict[str, float] | None = None  # Always null; older clients expect the key.
    score_meta_data: tuple[NodeScore, ...] | None = None  # The best nodes.
    allocation_time: int = 0  # ns that the selection took.
    coalesced_failures: int = 0  # How many more allocations failed in the same way.
