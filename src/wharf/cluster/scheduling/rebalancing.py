"""Proposes moves of allocations to nodes with better scores. It uses the scores of placements and moves nothing.

Only service jobs are considered: batch allocations would lose their progress, and system jobs run on every node anyway.
With bin packing, allocations on the emptiest nodes are examined first, with spread those on the fullest. A proposed
move counts as done when the next one is searched.
"""

from collections.abc import Iterator
from typing import Final

from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.feasibility.distinct import PlacedSibling, list_placed_siblings
from wharf.cluster.scheduling.feasibility.volumes import (
    NamespaceVolumes,
    has_sticky_volumes,
    list_single_writer_volumes,
    make_volume_check,
)
from wharf.cluster.scheduling.fleet.draft import FleetDraft
from wharf.cluster.scheduling.ranking.rules import get_placement_rules
from wharf.cluster.scheduling.ranking.seeded_random import SeededRandom
from wharf.cluster.scheduling.ranking.selector import NodeSelector
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, DEPLOYMENTS_OF_JOB, JOBS, UNFINISHED_ALLOCATIONS_ON_NODE
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.operator.rebalancing import AllocationMove, Rebalancing
from wharf.contract.model.operator.scheduler_configuration import SchedulerAlgorithm
from wharf.contract.model.resource_usage import get_resources_usage

MIN_SCORE_GAIN: Final = 0.1
"""A move with a smaller gain is not worth the restart. It also keeps allocations from moving back and forth."""

MAX_MOVES: Final = 500
"""Limits the size of a proposal."""
MAX_SCANNED_ALLOCATIONS: Final = 5_000
"""Limits the time of a proposal: at most this many allocations are examined."""


def propose_moves(snapshot: Replica, cache: SchedulerCache) -> Rebalancing:
    """Return the moves that raise an allocation's score by `MIN_SCORE_GAIN` or more, in the recommended order."""
    return _MoveFinder(snapshot, cache).run()


class _MoveFinder:
    """Finds the moves of one proposal."""

    def __init__(self, snapshot: Replica, cache: SchedulerCache) -> None:
        self._snapshot = snapshot
        self._cache = cache
        self._draft = FleetDraft(cache.fleet)
        """The resources in use on all nodes, as if the proposed moves were done."""
        self._selectors: dict[tuple[str, str, str], NodeSelector] = {}
        """By namespace, job id and group name."""
        self._jobs: dict[tuple[str, str], Job | None] = {}
        """Jobs by namespace and id. `None`: the job does not exist."""
        self._scanned_count = 0

    def run(self) -> Rebalancing:
        """Search the movable allocations, and return the proposed moves with the nodes in use before and after them."""
        counts_by_node = self._count_by_node()
        moves: list[AllocationMove] = []
        for allocation in self._iter_movable(counts_by_node):
            if len(moves) >= MAX_MOVES or self._scanned_count >= MAX_SCANNED_ALLOCATIONS:
                break
            self._scanned_count += 1
            move = self._find_move(allocation)
            if move is not None:
                moves.append(move)
                counts_by_node[move.from_node_id] -= 1
                counts_by_node[move.to_node_id] = counts_by_node.get(move.to_node_id, 0) + 1
        used_before = len([count for count in self._count_by_node().values() if count])
        used_after = len([count for count in counts_by_node.values() if count])
        return Rebalancing(
            text=_summarize(moves, used_before, used_after),
            moves=tuple(moves),
            nodes_used=used_before,
            nodes_used_after=used_after,
            allocations_looked_at=self._scanned_count,
        )

    def _count_by_node(self) -> dict[str, int]:
        """Return by node id how many allocations it has, without those of system and sysbatch jobs.

        Nodes without allocations are left out.
        """
        counts_by_node: dict[str, int] = {}
        for _, node in self._cache.fleet.iter_nodes():
            allocations = self._snapshot.list_by_index(UNFINISHED_ALLOCATIONS_ON_NODE, node.id)
            count = sum(
                allocation.is_occupying and not self._is_on_every_node(allocation) for allocation in allocations
            )
            if count:
                counts_by_node[node.id] = count
        return counts_by_node

    def _iter_movable(self, counts_by_node: dict[str, int]) -> Iterator[Allocation]:
        """Yield the allocations on these nodes that may be moved, in the order in which they are examined.

        Allocations on the emptiest node come first, or with the spread algorithm those on the fullest.
        """
        fleet = self._cache.fleet
        rows = [fleet.row_by_node_id[node_id] for node_id in counts_by_node]
        ordered_rows = sorted(rows, key=lambda row: (self._get_fill(row), fleet.get_node(row).id))
        configuration = get_placement_rules(self._snapshot, Job(id=""))
        if configuration.algorithm == SchedulerAlgorithm.SPREAD:
            ordered_rows.reverse()
        for row in ordered_rows:
            allocations = self._snapshot.list_by_index(UNFINISHED_ALLOCATIONS_ON_NODE, fleet.get_node(row).id)
            yield from sorted(
                (allocation for allocation in allocations if self._is_movable(allocation)),
                key=lambda allocation: allocation.id,
            )

    def _get_fill(self, row: int) -> float:
        """Return how full the node in this fleet row is: the used share of its CPU plus that of its memory, 0 to 2."""
        fleet = self._cache.fleet
        cpu, memory = max(1, int(fleet.cpu[row])), max(1, int(fleet.memory[row]))
        return int(fleet.cpu_used[row]) / cpu + int(fleet.memory_used[row]) / memory

    def _find_move(self, allocation: Allocation) -> AllocationMove | None:
        """Return a move of the allocation to a node with a sufficiently better score, or `None`.

        The allocation is removed from the draft and placed again. If there is no move, it is restored on its node.
        """
        job = self._get_job(allocation)
        group = job.find_group(allocation.task_group) if job is not None else None
        resources, fleet = allocation.allocated_resources, self._cache.fleet
        if job is None or group is None or resources is None:
            return None
        row = fleet.row_by_node_id[allocation.node_id]
        node, current_sibling = fleet.get_node(row), PlacedSibling(row, group.name)
        selector = self._get_selector(job, group)
        self._draft.remove_allocation(row, resources)
        selector.count_sibling(current_sibling, -1)
        current_score = selector.score_node(node, allocation.name)
        choice = selector.choose_node(allocation.name)
        if choice is not None and current_score is not None:
            chosen_row = fleet.row_by_node_id[choice.node.id]
            if choice.node.id != node.id and choice.score - current_score >= MIN_SCORE_GAIN:
                return _make_move(allocation, node.name, choice.node.id, choice.node.name, current_score, choice.score)
            self._draft.remove_allocation(chosen_row, choice.resources)
            selector.count_sibling(PlacedSibling(chosen_row, group.name), -1)
        self._draft.add_allocation(row, resources, get_resources_usage(resources))
        selector.count_sibling(current_sibling)
        return None

    def _get_selector(self, job: Job, group: TaskGroup) -> NodeSelector:
        """Return the selector that scores nodes for this group. It is built on first use and cached."""
        key = (job.namespace, job.id, group.name)
        selector = self._selectors.get(key)
        if selector is None:
            feasibility, row_by_node_id = self._cache.feasibility, self._cache.fleet.row_by_node_id
            volumes = NamespaceVolumes(self._snapshot, job.namespace)
            job_allocations = self._snapshot.list_by_index(ALLOCATIONS_OF_JOB, job.namespace, job.id)
            selector = self._selectors[key] = NodeSelector(
                self._draft,
                feasibility.screen_nodes(feasibility.select_ready_nodes(job), job, group, volumes),
                job,
                group,
                rules=get_placement_rules(self._snapshot, job),
                random=SeededRandom(job.id, self._snapshot.index),
                siblings=list_placed_siblings(job_allocations, row_by_node_id),
                volume_check=make_volume_check(group, volumes),
            )
        return selector

    def _get_job(self, allocation: Allocation) -> Job | None:
        """Return the job of the allocation from the cache or the snapshot, or `None` if it does not exist."""
        key = (allocation.namespace, allocation.job_id)
        if key not in self._jobs:
            self._jobs[key] = self._snapshot.get(JOBS, *key)
        return self._jobs[key]

    def _is_on_every_node(self, allocation: Allocation) -> bool:
        """Return whether the allocation belongs to a system or sysbatch job, which runs on every node."""
        job = self._get_job(allocation)
        return job is not None and job.runs_on_every_node

    def _is_movable(self, allocation: Allocation) -> bool:
        """Return whether the allocation may be moved.

        It must run the current version of a service job, and its group must have no sticky data on the node and no
        single-writer volume. It must not be about to migrate, and the job must have no active deployment.
        """
        job = self._get_job(allocation)
        if (
            job is None
            or job.stop
            or job.type != JobType.SERVICE
            or allocation.is_terminal
            or allocation.should_migrate
        ):
            return False
        group = job.find_group(allocation.task_group)
        if group is None or not allocation.is_of_version(job) or allocation.client_status != "running":
            return False
        if has_sticky_volumes(group) or list_single_writer_volumes(group) or group.ephemeral_disk.sticky:
            return False
        deployments = self._snapshot.list_by_index(DEPLOYMENTS_OF_JOB, job.namespace, job.id)
        return not any(deployment.is_active for deployment in deployments)


def _make_move(
    allocation: Allocation,
    from_node_name: str,
    to_node_id: str,
    to_node_name: str,
    score_before: float,
    score_after: float,
) -> AllocationMove:
    """Return the record of a proposed move of the allocation from its node to another one, with its score on both."""
    return AllocationMove(
        alloc_id=allocation.id,
        name=allocation.name,
        namespace=allocation.namespace,
        job_id=allocation.job_id,
        task_group=allocation.task_group,
        from_node_id=allocation.node_id,
        from_node=from_node_name,
        to_node_id=to_node_id,
        to_node=to_node_name,
        score_before=score_before,
        score_after=score_after,
    )


def _summarize(moves: list[AllocationMove], nodes_before: int, nodes_after: int) -> str:
    """Return a summary for users: the number of moves, their mean gain, and the nodes in use before and after them."""
    if not moves:
        return f"no allocation would have a better score on another node: {_format_nodes(nodes_before)} in use"
    mean = sum(move.score_after - move.score_before for move in moves) / len(moves)
    allocations = "1 allocation" if len(moves) == 1 else f"{len(moves)} allocations"
    nodes = (
        f"{_format_nodes(nodes_before)} in use before, {nodes_after} after"
        if nodes_before != nodes_after
        else f"{_format_nodes(nodes_before)} in use, as before"
    )
    return f"{allocations} would have a better score on another node, by {mean:.2f} on average; {nodes}"


def _format_nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
