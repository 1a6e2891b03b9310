"""The report of a rebalancing: which allocations to move, and the gain. The moves are chosen elsewhere."""

from wharf.contract.model.record import Record


class AllocationMove(Record):
    """A proposal to move one allocation to a node where its placement score is higher."""

    alloc_id: str
    name: str  # Such as "web.frontend[0]".
    namespace: str
    job_id: str
    task_group: str
    from_node_id: str
    from_node: str  # The name of the node.
    to_node_id: str
    to_node: str  # The name of the node.
    score_before: float
    score_after: float


class Rebalancing(Record):
    """The result of a request to rebalance: the proposed or started moves of allocations."""

    text: str  # The summary sentence.
    moves: tuple[AllocationMove, ...] = ()
    moving: int = 0  # How many moves were started; the others wait because of `migrate` limits.
    nodes_used: int = 0  # Nodes with allocations of service or batch jobs.
    nodes_used_after: int = 0  # The same after all moves.
    allocations_looked_at: int = 0  # How many allocations were examined.
