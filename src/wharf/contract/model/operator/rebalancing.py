"""The report of a rebalancing: which allocations to move, and the gain. The moves are chosen elsewhere."""

from wharf.contract.model.record import Record


class AllocationMove(Record):
    """One allocation, and the node where it would score higher. The scores are those of the placement ranking."""

    alloc_id: str
    name: str
    namespace: str
    job_id: str
    task_group: str
    from_node_id: str
    from_node: str
    to_node_id: str
    to_node: str
    score_before: float
    score_after: float


class Rebalancing(Record):
    """The proposed or started moves.

    `moving` counts the moves that were started; the `migrate` limits of the groups hold back the others. `nodes_used` counts the
    nodes with allocations of jobs other than system and sysbatch jobs.
    """

    text: str
    moves: tuple[AllocationMove, ...] = ()
    moving: int = 0
    nodes_used: int = 0
    nodes_used_after: int = 0
    allocations_looked_at: int = 0
