"""Which allocations would stand better on another node, by the very scores that placements are ranked by; it moves nothing.

Only services are looked at: work that ends would lose what it has done, and work for every node is where it belongs. What
packs nodes begins with the emptiest of them, what spreads work with the fullest. Each move counts for the next.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from wharf.model.allocation import Allocation
from wharf.model.group import TaskGroup
from wharf.model.job import Job, JobType
from wharf.model.rebalancing import Move, Rebalancing
from wharf.model.scheduler_configuration import SchedulerAlgorithm
from wharf.scheduling.chance import Chance
from wharf.scheduling.claims import is_sticky
from wharf.scheduling.distinct import Neighbour
from wharf.scheduling.draft import Draft
from wharf.scheduling.feasibility import volumes_by_index
from wharf.scheduling.ground import Ground, Volumes, rules_for
from wharf.scheduling.placing import GroupPlacing, Place
from wharf.scheduling.usage import usage_of_resources
from wharf.scheduling.writers import writes_alone
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS_OF_JOB, ALLOCATIONS_ON_NODE, DEPLOYMENTS_OF_JOB, JOBS

GAIN_LEAST: Final = 0.1
"""A move that makes less of a difference is not worth the restart; and what was moved is not moved back for less."""

MOVES_MOST: Final = 500
LOOKED_AT_MOST: Final = 5_000
EVERY_NODE_TYPES: Final = (JobType.SYSTEM, JobType.SYSBATCH)


def rebalance(snapshot: Replica, ground: Ground) -> Rebalancing:
    """Every move that is worth it, in the order in which they are best made."""
    return _Rebalance(snapshot, ground).run()


class _Rebalance:
    def __init__(self, snapshot: Replica, ground: Ground) -> None:
        self._snapshot = snapshot
        self._ground = ground
        self._draft = Draft(ground.fleet)
        self._placings: dict[tuple[str, str, str], GroupPlacing] = {}
        self._jobs: dict[tuple[str, str], Job | None] = {}
        self._looked_at = 0

    def run(self) -> Rebalancing:
        occupied = self._occupied()
        moves: list[Move] = []
        for allocation in self._in_order(occupied):
            if len(moves) >= MOVES_MOST or self._looked_at >= LOOKED_AT_MOST:
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
        for _, node in self._ground.fleet.rows():
            there = self._snapshot.those(ALLOCATIONS_ON_NODE, node.id)
            number = sum(each.is_occupying and not self._is_on_every_node(each) for each in there)
            if number:
                found[node.id] = number
        return found

    def _in_order(self, occupied: dict[str, int]) -> Iterator[Allocation]:
        fleet = self._ground.fleet
        rows = [fleet.row_of[node_id] for node_id in occupied]
        filled = sorted(rows, key=lambda row: (self._filled(row), fleet.node(row).id))
        configuration = rules_for(self._snapshot, Job(id=""))
        if configuration.algorithm is SchedulerAlgorithm.SPREAD:
            filled.reverse()
        for row in filled:
            there = self._snapshot.those(ALLOCATIONS_ON_NODE, fleet.node(row).id)
            yield from sorted((each for each in there if self._is_movable(each)), key=lambda each: each.id)

    def _filled(self, row: int) -> float:
        fleet = self._ground.fleet
        cpu, memory = max(1, int(fleet.cpu[row])), max(1, int(fleet.memory[row]))
        return int(fleet.cpu_used[row]) / cpu + int(fleet.memory_used[row]) / memory

    def _better(self, allocation: Allocation) -> Move | None:
        job = self._job(allocation)
        group = job.group(allocation.task_group) if job is not None else None
        resources, fleet = allocation.allocated_resources, self._ground.fleet
        if job is None or group is None or resources is None:
            return None
        row, place = fleet.row_of[allocation.node_id], Place(allocation.name)
        node, here = fleet.node(row), Neighbour(row, group.name)
        placing = self._placing(job, group)
        self._draft.give_back(row, resources)
        placing.join(here, -1)
        before = placing.score_on(node, place)
        chosen = placing.choose(place)
        if chosen is not None and before is not None:
            there = fleet.row_of[chosen.node.id]
            if chosen.node.id != node.id and chosen.score - before >= GAIN_LEAST:
                return _move(allocation, node.name, chosen.node.id, chosen.node.name, before, chosen.score)
            self._draft.give_back(there, chosen.resources)
            placing.join(Neighbour(there, group.name), -1)
        self._draft.take(row, resources, usage_of_resources(resources))
        placing.join(here)
        return None

    def _placing(self, job: Job, group: TaskGroup) -> GroupPlacing:
        key = (job.namespace, job.id, group.name)
        found = self._placings.get(key)
        if found is None:
            feasibility, row_of = self._ground.feasibility, self._ground.fleet.row_of
            volumes = Volumes(self._snapshot, job.namespace)
            there = self._snapshot.those(ALLOCATIONS_OF_JOB, job.namespace, job.id)
            found = self._placings[key] = GroupPlacing(
                self._draft,
                feasibility.screen(feasibility.in_reach(job), job, group, volumes),
                job,
                group,
                rules=rules_for(self._snapshot, job),
                chance=Chance(job.id, self._snapshot.index),
                neighbours=_neighbours(there, row_of),
                has_volumes=volumes_by_index(group, volumes),
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
        if job is None or job.stop or job.type != JobType.SERVICE or allocation.is_terminal or allocation.is_to_migrate:
            return False
        group = job.group(allocation.task_group)
        is_current = (allocation.job_version, allocation.job_create_index) == (job.version, job.create_index)
        if group is None or not is_current or allocation.client_status != "running":
            return False
        if is_sticky(group) or writes_alone(group) or group.ephemeral_disk.sticky:
            return False
        deployments = self._snapshot.those(DEPLOYMENTS_OF_JOB, job.namespace, job.id)
        return not any(each.is_active for each in deployments)


def _neighbours(there: Iterable[Allocation], row_of: dict[str, int]) -> list[Neighbour]:
    return [
        Neighbour(row_of[each.node_id], each.task_group)
        for each in there
        if not each.is_terminal and each.node_id in row_of
    ]


def _move(allocation: Allocation, from_node: str, to_id: str, to_node: str, before: float, after: float) -> Move:
    return Move(
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


def _sentence(moves: list[Move], before: int, after: int) -> str:
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
