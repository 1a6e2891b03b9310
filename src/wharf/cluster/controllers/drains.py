"""What leaves a node that is drained, and when: a few at a time, or all of it when the time is over (scheduling.md 9.3).

Services leave within the limits of their groups, work that ends has until the deadline, system jobs go last. All is read
from the state, so a new leader goes on where the old one was. It holds nothing; what changed since the last look is told
by `leaving`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from wharf.cluster.controllers.drain_tracker import DrainTracker, JobKey, is_movable
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.nodes import drains as moving
from wharf.cluster.operations.nodes.drains import MigrationResult
from wharf.cluster.operations.nodes.writes import NodeWriteResult
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_OF_JOB, ALLOCATIONS_ON_NODE, JOBS, NODES
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.group_policies import MigratePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.times import DecisionContext, to_ns

SECOND_NS: Final = 1_000_000_000
DEADLINE_WINDOW_NS: Final = 5 * SECOND_NS
"""Deadlines so close together are met together, with the last of them: nobody gets less time than was promised."""

CHANGES_PER_EVALUATION: Final = 4
"""An evaluation, and what follows from it."""


class NodeDrain(msgspec.Struct, frozen=True):
    """One node on its way to be empty. `is_forced`: nothing is waited for any more."""

    node: Node
    is_forced: bool
    ignores_system_jobs: bool


NodeDrains = Mapping[str, NodeDrain]


class DrainStep(msgspec.Struct, frozen=True):
    """What one write moved, and the jobs that it did not get to."""

    marked_count: int
    remaining_jobs: tuple[JobKey, ...]


def find_drains(snapshot: Replica, node_ids: Iterable[str], now_ns: int) -> NodeDrains:
    """Those of these nodes that are being drained, by id."""
    nodes = _drained(snapshot, node_ids)
    forced = {node.id: None for node in nodes if _is_at_once(node)}
    forced |= {node_id: None for due_ns, ids in _windows(nodes) if due_ns <= now_ns for node_id in ids}
    return {
        node.id: NodeDrain(
            node=node,
            is_forced=node.id in forced,
            ignores_system_jobs=node.drain_strategy is not None and node.drain_strategy.ignore_system_jobs,
        )
        for node in nodes
    }


def next_deadline_ns(snapshot: Replica, node_ids: Iterable[str], now_ns: int) -> int | None:
    """When the time of the next of these nodes is over; None: time alone decides nothing."""
    return min((due_ns for due_ns, _ in _windows(_drained(snapshot, node_ids)) if due_ns > now_ns), default=None)


def _drained(snapshot: Replica, node_ids: Iterable[str]) -> list[Node]:
    nodes = [snapshot.get(NODES, node_id) for node_id in node_ids]
    return [node for node in nodes if node is not None and node.drain_strategy is not None]


def move_allocations(
    snapshot: Replica,
    drains: NodeDrains,
    jobs: Sequence[JobKey],
    moment: DecisionContext,
    *,
    tracker: DrainTracker,
    max_changes: int,
) -> Decision[DrainStep] | None:
    """As much of what may leave now as fits in one write. A group with more than that goes on with the next. None: nothing
    of these may leave.
    """
    nodes: dict[str, None] = {}
    taken: list[tuple[Job, Sequence[Allocation]]] = []
    room, left = max_changes, tuple(jobs)
    for position, key in enumerate(jobs):
        left = tuple(jobs[position:])
        job = snapshot.get(JOBS, *key)
        going = select_movable(snapshot, drains, job, tracker.list_allocations_of_job(key)) if job is not None else []
        if job is not None and going:
            if taken and room < CHANGES_PER_EVALUATION + 2:
                break
            room -= CHANGES_PER_EVALUATION
            fitting = _fitting(going, nodes, room)
            taken.append((job, fitting))
            room -= moving.count_write_items(fitting, nodes)
            nodes |= {each.node_id: None for each in fitting}
            if len(fitting) < len(going):
                break
        left = tuple(jobs[position + 1 :])
    decision: Decision[MigrationResult] | None = moving.migrate_allocations(snapshot, taken, moment)
    if decision is None:
        return None
    reply = decision.build_reply
    return Decision(decision.write, lambda index: DrainStep(reply(index).marked_count, left))


def _fitting(leaving: Sequence[Allocation], nodes: Mapping[str, None], room: int) -> list[Allocation]:
    """At least one, whatever the room: a write that is too large is refused with a sentence, no write is a silence."""
    fitting = list(leaving[: max(1, room)])
    while len(fitting) > 1 and moving.count_write_items(fitting, nodes) > room:
        fitting = fitting[: max(1, len(fitting) - (moving.count_write_items(fitting, nodes) - room))]
    return fitting


def select_movable(snapshot: Replica, drains: NodeDrains, job: Job, ids: Iterable[str]) -> list[Allocation]:
    """Which of these allocations of the job leave now. What is stopped leaves anyway."""
    if job.stop:
        return []
    found = [each for each_id in ids if (each := snapshot.get(ALLOCATIONS, each_id)) is not None]
    here = [each for each in found if each.node_id in drains and is_movable(each)]
    if job.type == JobType.SYSTEM:
        return _system_work(snapshot, drains, here)
    forced = [each for each in here if drains[each.node_id].is_forced]
    if job.type != JobType.SERVICE or len(forced) == len(here):
        return forced
    everyone = snapshot.list_by_index(ALLOCATIONS_OF_JOB, job.namespace, job.id)
    gentle = {each.id: each for each in here if not drains[each.node_id].is_forced}
    return [*forced, *_by_limits(job, everyone, gentle, forced)]


def _system_work(snapshot: Replica, drains: NodeDrains, here: Iterable[Allocation]) -> list[Allocation]:
    """What runs everywhere leaves last."""
    drained = [(each, drains[each.node_id]) for each in here]
    return [
        each
        for each, drain in drained
        if not drain.ignores_system_jobs and (drain.is_forced or _is_done_but_system(snapshot, each.node_id))
    ]


def _by_limits(
    job: Job, everyone: Iterable[Allocation], gentle: Mapping[str, Allocation], forced: Iterable[Allocation]
) -> Iterator[Allocation]:
    """So many of each group that `count` less `max_parallel` of it stay well."""
    going = {each.id: None for each in forced}
    well = count_healthy_by_group(each for each in everyone if each.id not in going)
    for group in job.groups:
        leaving = [each for each in gentle.values() if each.task_group == group.name]
        room = well.get(group.name, 0) - min_healthy(group)
        yield from leaving[: max(0, room)]


def count_healthy_by_group(allocations: Iterable[Allocation]) -> dict[str, int]:
    """How many of each group go on, and have been said to be well or not."""
    well: dict[str, int] = {}
    for each in allocations:
        if not each.is_terminal and not each.should_migrate and _is_judged(each):
            well[each.task_group] = well.get(each.task_group, 0) + 1
    return well


def min_healthy(group: TaskGroup) -> int:
    """So many of the group must stay when others are moved."""
    return group.count - (group.migrate or MigratePolicy()).max_parallel


def finish_drain(
    snapshot: Replica, drains: NodeDrains, node_id: str, moment: DecisionContext, *, tracker: DrainTracker
) -> Decision[NodeWriteResult] | None:
    """The end of the node's drain, once nothing is left there to be moved; None: it is not over."""
    drain = drains.get(node_id)
    if drain is None or not is_finished(snapshot, drain, tracker):
        return None
    is_out_of_time = drain.is_forced and any(True for _ in _concerned(snapshot, drain))
    return moving.complete_drain(snapshot, drain.node, moment, is_deadline_reached=is_out_of_time)


def is_finished(snapshot: Replica, drain: NodeDrain, tracker: DrainTracker) -> bool:
    """Whether all has left, or is told to where there is no more time. What is of a job that is stopped leaves anyway."""
    if not drain.is_forced and not _is_done_but_system(snapshot, drain.node.id):
        return False
    jobs = (snapshot.get(JOBS, *key) for key in tracker.iter_jobs_on_node(drain.node.id))
    return not any(
        job is not None and not job.stop and not (drain.ignores_system_jobs and job.type == JobType.SYSTEM)
        for job in jobs
    )


def _is_done_but_system(snapshot: Replica, node_id: str) -> bool:
    """All is over there, but what runs on every node."""
    return all(_is_system(snapshot, each) for each in _occupying(snapshot, node_id))


def _concerned(snapshot: Replica, drain: NodeDrain) -> Iterator[Allocation]:
    """What still occupies the node, but for what the drain ignores."""
    for each in _occupying(snapshot, drain.node.id):
        if not (drain.ignores_system_jobs and _is_system(snapshot, each)):
            yield each


def _occupying(snapshot: Replica, node_id: str) -> Iterator[Allocation]:
    return (each for _, each in snapshot.iter_by_index(ALLOCATIONS_ON_NODE, node_id) if each.is_occupying)


def _is_system(snapshot: Replica, allocation: Allocation) -> bool:
    job = snapshot.get(JOBS, allocation.namespace, allocation.job_id)
    return job is not None and job.type == JobType.SYSTEM


def _is_judged(allocation: Allocation) -> bool:
    """Its node has said whether it is well. One that is not is none that a drain could make worse."""
    status = allocation.deployment_status
    return status is not None and status.healthy is not None


def _is_at_once(node: Node) -> bool:
    return node.drain_strategy is not None and node.drain_strategy.deadline < 0


def _windows(nodes: Iterable[Node]) -> Iterator[tuple[int, list[str]]]:
    """Deadlines that are close together, by the last of them."""
    deadlines = sorted(
        (to_ns(node.drain_strategy.force_deadline), node.id)
        for node in nodes
        if node.drain_strategy is not None and node.drain_strategy.force_deadline is not None
    )
    first_ns, last_ns, ids = 0, 0, list[str]()
    for deadline_ns, node_id in deadlines:
        if ids and deadline_ns - first_ns > DEADLINE_WINDOW_NS:
            yield last_ns, ids
            ids = []
        if not ids:
            first_ns = deadline_ns
        last_ns = deadline_ns
        ids = [*ids, node_id]
    if ids:
        yield last_ns, ids
