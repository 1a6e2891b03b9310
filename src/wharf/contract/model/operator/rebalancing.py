"""What moving allocations would gain, or gained: for people, one sentence first and the table after. Nothing is decided here."""

from wharf.contract.model.record import Record


class AllocationMove(Record):
    """One allocation, and the node where it would stand better. Scores are those that placements are ranked by."""

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
    """`moving`: how many of the moves were begun now; the others are held back by their groups' `migrate` limits. A node is
    used if anything but work for every node occupies it.
    """

    text: str
    moves: tuple[AllocationMove, ...] = ()
    moving: int = 0
    nodes_used: int = 0
    nodes_used_after: int = 0
    allocations_looked_at: int = 0
