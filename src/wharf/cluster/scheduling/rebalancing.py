"""Which allocations would stand better on another node, by the very scores that placements are ranked by; it moves nothing.

Only services are looked at: work that ends would lose what it has done, and work for every node is where it belongs. What
packs nodes begins with the emptiest of them, what spreads work with the fullest. Each move counts for the next.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from wharf.cluster.scheduling.cache import NamespaceVolumes, SchedulerCache, get_placement_rules
from wharf.cluster.scheduling.feasibility.checker import make_volume_check
from wharf.cluster.scheduling.feasibility.distinct import PlacedSibling
from wharf.cluster.scheduling.feasibility.volumes import has_sticky_volumes, list_single_writer_volumes
from wharf.cluster.scheduling.fleet.draft import FleetDraft
from wharf.cluster.scheduling.ranking.seeded_random import SeededRandom
from wharf.cluster.scheduling.ranking.selector import NodePreferences, NodeSelector
from wharf.cluster.scheduling.resources.usage import get_resources_usage
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, ALLOCATIONS_ON_NODE, DEPLOYMENTS_OF_JOB, JOBS
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.operator.rebalancing import AllocationMove, Rebalancing
from wharf.contract.model.operator.scheduler_configuration import SchedulerAlgorithm

MIN_SCORE_GAIN: Final = 0.1
"""A move that makes less of a difference is not worth the restart; and what was moved is not moved back for less."""

MAX_MOVES: Final = 500
MAX_SCANNED_ALLOCATIONS: Final = 5_000
EVERY_NODE_TYPES: Final = (JobType.SYSTEM, JobType.SYSBATCH)


def propose_moves(snapshot: Replica, cache: SchedulerCache) -> Rebalancing:
    """Every move that is worth it, in the order in which they are best made."""
    return _Rebalance(snapshot, cache).run()


class _Rebalance:
    def __init__(self, snapshot: Replica, ground: SchedulerCache) -> None:
        self._snapshot = snapshot
        self._ground = ground
        self._draft = FleetDraft(ground.fleet)
        self._placings: dict[tuple[str, str, str], NodeSelector] = {}
        self._jobs: dict[tuple[str, str], Job | None] = {}
        self._looked_at = 0

    def run(self) -> Rebalancing:
        occupied = self._occupied()
        moves: list[AllocationMove] = []
        for allocation in self._in_order(occupied):
            if len(moves) >= MAX_MOVES or self._looked_at >= MAX_SCANNED_ALLOCATIONS:
                break
            self._looked_at += 1
            move = self._better(allocation)
            if move is not None:
                moves.append(move)
                occupied[move.from_node_id] -= 1
                occupied[move.to_node_id] = occupied.get(move.to_node_id, 0) + 1
        before = len([each for each in self._occupied().values() if each])
        after = len([each for each in occupied.values() if each])
        return Rebalancing(
            text=_sentence(moves, before, after),
            moves=tuple(moves),
            nodes_used=before,
            nodes_used_after=after,
            allocations_looked_at=self._looked_at,
        )

    def _occupied(self) -> dict[str, int]:
        """By node, how much is there that is not on every node."""
        found: dict[str, int] = {}
        for _, node in self._ground.fleet.iter_nodes():
            there = self._snapshot.list_by_index(ALLOCATIONS_ON_NODE, node.id)
            number = sum(each.is_occupying and not self._is_on_every_node(each) for each in there)
            if number:
                found[node.id] = number
        return found

    def _in_order(self, occupied: dict[str, int]) -> Iterator[Allocation]:
        fleet = self._ground.fleet
        rows = [fleet.row_by_node_id[node_id] for node_id in occupied]
        filled = sorted(rows, key=lambda row: (self._filled(row), fleet.get_node(row).id))
        configuration = get_placement_rules(self._snapshot, Job(id=""))
        if configuration.algorithm is SchedulerAlgorithm.SPREAD:
            filled.reverse()
        for row in filled:
            there = self._snapshot.list_by_index(ALLOCATIONS_ON_NODE, fleet.get_node(row).id)
            yield from sorted((each for each in there if self._is_movable(each)), key=lambda each: each.id)

    def _filled(self, row: int) -> float:
        fleet = self._ground.fleet
        cpu, memory = max(1, int(fleet.cpu[row])), max(1, int(fleet.memory[row]))
        return int(fleet.cpu_used[row]) / cpu + int(fleet.memory_used[row]) / memory

    def _better(self, allocation: Allocation) -> AllocationMove | None:
        job = self._job(allocation)
        group = job.find_group(allocation.task_group) if job is not None else None
        resources, fleet = allocation.allocated_resources, self._ground.fleet
        if job is None or group is None or resources is None:
            return None
        row, place = fleet.row_by_node_id[allocation.node_id], NodePreferences(allocation.name)
        node, here = fleet.get_node(row), PlacedSibling(row, group.name)
        placing = self._placing(job, group)
        self._draft.remove_allocation(row, resources)
        placing.count_sibling(here, -1)
        before = placing.score_node(node, place)
        chosen = placing.choose_node(place)
        if chosen is not None and before is not None:
            there = fleet.row_by_node_id[chosen.node.id]
            if chosen.node.id != node.id and chosen.score - before >= MIN_SCORE_GAIN:
                return _move(allocation, node.name, chosen.node.id, chosen.node.name, before, chosen.score)
            self._draft.remove_allocation(there, chosen.resources)
            placing.count_sibling(PlacedSibling(there, group.name), -1)
        self._draft.add_allocation(row, resources, get_resources_usage(resources))
        placing.count_sibling(here)
        return None

    def _placing(self, job: Job, group: TaskGroup) -> NodeSelector:
        key = (job.namespace, job.id, group.name)
        found = self._placings.get(key)
        if found is None:
            feasibility, row_of = self._ground.feasibility, self._ground.fleet.row_by_node_id
            volumes = NamespaceVolumes(self._snapshot, job.namespace)
            there = self._snapshot.list_by_index(ALLOCATIONS_OF_JOB, job.namespace, job.id)
            found = self._placings[key] = NodeSelector(
                self._draft,
                feasibility.screen_nodes(feasibility.select_ready_nodes(job), job, group, volumes),
                job,
                group,
                rules=get_placement_rules(self._snapshot, job),
                random=SeededRandom(job.id, self._snapshot.index),
                siblings=_neighbours(there, row_of),
                volume_check=make_volume_check(group, volumes),
            )
        return found

    def _job(self, allocation: Allocation) -> Job | None:
        key = (allocation.namespace, allocation.job_id)
        if key not in self._jobs:
            self._jobs[key] = self._snapshot.get(JOBS, *key)
        return self._jobs[key]

    def _is_on_every_node(self, allocation: Allocation) -> bool:
        job = self._job(allocation)
        return job is not None and job.type in EVERY_NODE_TYPES

    def _is_movable(self, allocation: Allocation) -> bool:
        """It runs well, as its job is now; nobody rolls it out or moves it already; its data does not hold it."""
        job = self._job(allocation)
        if (
            job is None
            or job.stop
            or job.type != JobType.SERVICE
            or allocation.is_terminal
            or allocation.should_migrate
        ):
            return False
        group = job.find_group(allocation.task_group)
        is_current = (allocation.job_version, allocation.job_create_index) == (job.version, job.create_index)
        if group is None or not is_current or allocation.client_status != "running":
            return False
        if has_sticky_volumes(group) or list_single_writer_volumes(group) or group.ephemeral_disk.sticky:
            return False
        deployments = self._snapshot.list_by_index(DEPLOYMENTS_OF_JOB, job.namespace, job.id)
        return not any(each.is_active for each in deployments)


def _neighbours(there: Iterable[Allocation], row_of: dict[str, int]) -> list[PlacedSibling]:
    return [
        PlacedSibling(row_of[each.node_id], each.task_group)
        for each in there
        if not each.is_terminal and each.node_id in row_of
    ]


def _move(
    allocation: Allocation, from_node: str, to_id: str, to_node: str, before: float, after: float
) -> AllocationMove:
    return AllocationMove(
        alloc_id=allocation.id,
        name=allocation.name,
        namespace=allocation.namespace,
        job_id=allocation.job_id,
        task_group=allocation.task_group,
        from_node_id=allocation.node_id,
        from_node=from_node,
        to_node_id=to_id,
        to_node=to_node,
        score_before=before,
        score_after=after,
    )


def _sentence(moves: list[AllocationMove], before: int, after: int) -> str:
    if not moves:
        return f"nothing would stand better elsewhere: work is on {_nodes(before)}"
    mean = sum(each.score_after - each.score_before for each in moves) / len(moves)
    allocations = "1 allocation" if len(moves) == 1 else f"{len(moves)} allocations"
    nodes = (
        f"{_nodes(before)} would hold work before and {after} after"
        if before != after
        else f"on {_nodes(before)} as before"
    )
    return f"{allocations} would stand better elsewhere, by {mean:.2f} of a score on average; {nodes}"


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"
