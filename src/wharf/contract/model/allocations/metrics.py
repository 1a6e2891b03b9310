"""Metrics of a placement: how many nodes were evaluated, filtered and exhausted, and the scores.

For people and for explanations. Nothing here decides anything.
"""

from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.record import Record


class NodeScore(Record):
    """The score of each scorer for one node, and the mean by which nodes are ranked."""

    node_id: str
    scores: dict[str, float] | None = None
    norm_score: float = 0.0


class AllocMetric(Record):
    """Metrics of one node selection for a group, or the sum of several that failed alike."""

    nodes_evaluated: int = 0
    nodes_filtered: int = 0
    nodes_in_pool: int = 0
    node_pool: str = ""
    nodes_available: dict[str, int] | None = None
    class_filtered: dict[str, int] | None = None
    constraint_filtered: dict[str, int] | None = None
    nodes_exhausted: int = 0
    class_exhausted: dict[str, int] | None = None
    dimension_exhausted: dict[str, int] | None = None
    quota_exhausted: tuple[str, ...] | None = None
    resources_exhausted: dict[str, Resources] | None = None
    scores: dict[str, float] | None = None  # Always null; older clients expect the key.
    score_meta_data: tuple[NodeScore, ...] | None = None
    allocation_time: int = 0  # ns
    coalesced_failures: int = 0
