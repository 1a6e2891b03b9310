"""Decides which allocations leave draining nodes and when a drain is complete (scheduling.md 9.3).

Services leave a few at a time, within the `migrate` limits of their groups. Batch allocations may run until the
deadline. System jobs leave last. It reads only the replica and keeps no state, so a new leader continues where the old
one stopped. What changed since the last check is tracked in `controllers.drain_tracker`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from wharf.cluster.controllers.drain_tracker import DrainTracker, is_movable
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.nodes import drains as drain_operations
from wharf.cluster.operations.nodes.drains import MigrationResult
from wharf.cluster.operations.nodes.writes import NodeWriteResult
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_OF_JOB, JOBS, NODES, UNFINISHED_ALLOCATIONS_ON_NODE
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.group_policies import MigratePolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobKey, JobType
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.times import SECOND, DecisionContext, has_passed, to_ns

DEADLINE_WINDOW_NS: Final = 5 * SECOND
"""Deadlines within this time are handled together, at the last one, so that no node gets less time than promised."""

CHANGES_PER_EVALUATION: Final = 4
"""How many changes one evaluated job adds to a write: the evaluation, and the derived status and summaries of the job.
"""


class NodeDrain(msgspec.Struct, frozen=True):
    """The drain of one node."""

    node: Node
    is_forced: bool  # The deadline of the drain has passed, so allocations leave without delay.
    ignores_system_jobs: bool  # Allocations of system jobs stay on the node.


NodeDrains = Mapping[str, NodeDrain]
"""Drains by node id."""


class DrainStep(msgspec.Struct, frozen=True):
    """The result of one write that marks allocations to migrate."""

    marked_count: int  # How many allocations the write marks.
    remaining_jobs: tuple[JobKey, ...]  # Jobs that did not fit in the write, in part or completely.


def find_drains(snapshot: Replica, node_ids: Iterable[str], now_ns: int) -> NodeDrains:
    """Return the drains of those of these nodes that are draining, by node id.

    A drain is forced if its deadline has passed at `now_ns` (Unix nanoseconds) or if it has no waiting time.
    """
    nodes = _list_draining(snapshot, node_ids)
    forced_ids = {node.id: None for node in nodes if _is_immediate(node) or _has_implausible_deadline(node, now_ns)}
    forced_ids |= {node_id: None for due_ns, ids in _group_deadlines(nodes) if due_ns <= now_ns for node_id in ids}
    return {
        node.id: NodeDrain(
            node=node,
            is_forced=node.id in forced_ids,
            ignores_system_jobs=node.drain_strategy is not None and node.drain_strategy.ignore_system_jobs,
        )
        for node in nodes
    }


def next_deadline_ns(snapshot: Replica, node_ids: Iterable[str], now_ns: int) -> int | None:
    """Return the earliest drain deadline of these nodes after `now_ns`, in Unix nanoseconds, or `None`."""
    return min(
        (due_ns for due_ns, _ in _group_deadlines(_list_draining(snapshot, node_ids)) if due_ns > now_ns), default=None
    )


def _list_draining(snapshot: Replica, node_ids: Iterable[str]) -> list[Node]:
    """Return the nodes with these ids that exist and are draining."""
    nodes = [snapshot.get(NODES, node_id) for node_id in node_ids]
    return [node for node in nodes if node is not None and node.drain_strategy is not None]


def move_allocations(
    snapshot: Replica,
    drains: NodeDrains,
    jobs: Sequence[JobKey],
    context: DecisionContext,
    *,
    tracker: DrainTracker,
    max_changes: int,
) -> Decision[DrainStep] | None:
    """Return the decision that marks the allocations of these jobs that may leave draining nodes now, or `None` if none
    may.

    `max_changes` limits the write. Jobs that do not fit are listed in the reply, for the next write.
    """
    nodes: dict[str, None] = {}
    migrations: list[tuple[Job, Sequence[Allocation]]] = []
    free_changes, remaining = max_changes, tuple(jobs)
    for position, key in enumerate(jobs):
        remaining = tuple(jobs[position:])
        job = snapshot.get(JOBS, *key)
        movable = select_movable(snapshot, drains, job, tracker.list_allocations_of_job(key)) if job is not None else []
        if job is not None and movable:
            if migrations and free_changes < CHANGES_PER_EVALUATION + 2:
                break
            free_changes -= CHANGES_PER_EVALUATION
            fitting = _select_fitting(movable, nodes, free_changes)
            migrations.append((job, fitting))
            free_changes -= drain_operations.count_write_items(fitting, nodes)
            nodes |= {allocation.node_id: None for allocation in fitting}
            if len(fitting) < len(movable):
                break
        remaining = tuple(jobs[position + 1 :])
    decision: Decision[MigrationResult] | None = drain_operations.migrate_allocations(snapshot, migrations, context)
    if decision is None:
        return None
    reply = decision.build_reply
    return Decision(decision.write, lambda index: DrainStep(reply(index).marked_count, remaining))


def _select_fitting(
    leaving: Sequence[Allocation], written_node_ids: Mapping[str, None], max_changes: int
) -> list[Allocation]:
    """Return the first allocations whose marks fit in `max_changes` changes of a write, but at least one.

    `written_node_ids` are nodes that the write contains already. If even one allocation is too large, the log rejects
    the write with an error; if nothing were written, the problem would stay unnoticed.
    """
    fitting = list(leaving[: max(1, max_changes)])
    while len(fitting) > 1 and drain_operations.count_write_items(fitting, written_node_ids) > max_changes:
        fitting = fitting[
            : max(1, len(fitting) - (drain_operations.count_write_items(fitting, written_node_ids) - max_changes))
        ]
    return fitting


def select_movable(snapshot: Replica, drains: NodeDrains, job: Job, ids: Iterable[str]) -> list[Allocation]:
    """Return which of these allocations of the job leave draining nodes now. Empty if the job is stopped.

    System jobs leave last, batch jobs only after the drain's deadline, services a few at a time.
    """
    if job.stop:
        return []
    allocations = [found for allocation_id in ids if (found := snapshot.get(ALLOCATIONS, allocation_id)) is not None]
    movable = [allocation for allocation in allocations if allocation.node_id in drains and is_movable(allocation)]
    if job.type == JobType.SYSTEM:
        return _select_system_allocations(snapshot, drains, movable)
    forced = [allocation for allocation in movable if drains[allocation.node_id].is_forced]
    if job.type != JobType.SERVICE or len(forced) == len(movable):
        return forced
    job_allocations = snapshot.list_by_index(ALLOCATIONS_OF_JOB, job.namespace, job.id)
    unforced = {allocation.id: allocation for allocation in movable if not drains[allocation.node_id].is_forced}
    return [*forced, *_select_within_limits(job, job_allocations, unforced, forced)]


def _select_system_allocations(
    snapshot: Replica, drains: NodeDrains, allocations: Iterable[Allocation]
) -> list[Allocation]:
    """Return which of these allocations of a system job leave now.

    They leave when the deadline has passed or only system jobs are left on the node, and never if the drain ignores
    system jobs.
    """
    drain_by_allocation = [(allocation, drains[allocation.node_id]) for allocation in allocations]
    return [
        allocation
        for allocation, drain in drain_by_allocation
        if not drain.ignores_system_jobs
        and (drain.is_forced or _has_only_system_allocations(snapshot, allocation.node_id))
    ]


def _select_within_limits(
    job: Job, job_allocations: Iterable[Allocation], unforced: Mapping[str, Allocation], forced: Iterable[Allocation]
) -> Iterator[Allocation]:
    """Yield the allocations in `unforced` that may leave now, before the deadline of their node's drain.

    Each group keeps at least its count minus `migrate.max_parallel` healthy allocations. Allocations in `forced` leave
    in any case, so they do not count as healthy.
    """
    forced_ids = {allocation.id: None for allocation in forced}
    healthy_counts = count_healthy_by_group(
        allocation for allocation in job_allocations if allocation.id not in forced_ids
    )
    unforced_by_group: dict[str, list[Allocation]] = {}
    for allocation in unforced.values():
        unforced_by_group.setdefault(allocation.task_group, []).append(allocation)
    for group in job.groups:
        leaving = unforced_by_group.get(group.name, [])
        free_slots = healthy_counts.get(group.name, 0) - min_healthy(group)
        yield from leaving[: max(0, free_slots)]


def count_healthy_by_group(allocations: Iterable[Allocation]) -> dict[str, int]:
    """Return by group how many active allocations have a reported health, healthy or not, and are not marked to
    migrate.
    """
    counts: dict[str, int] = {}
    for allocation in allocations:
        if not allocation.is_terminal and not allocation.should_migrate and _has_health(allocation):
            counts[allocation.task_group] = counts.get(allocation.task_group, 0) + 1
    return counts


def min_healthy(group: TaskGroup) -> int:
    """Return how many allocations of the group must keep running while others are moved: its count minus
    `migrate.max_parallel`.
    """
    return group.count - (group.migrate or MigratePolicy()).max_parallel


def finish_drain(
    snapshot: Replica, drains: NodeDrains, node_id: str, context: DecisionContext, *, tracker: DrainTracker
) -> Decision[NodeWriteResult] | None:
    """Return the decision that records the end of the node's drain.

    Return `None` if the node does not drain, or if allocations must still leave it (`is_finished`).
    """
    drain = drains.get(node_id)
    if drain is None or not is_finished(snapshot, drain, tracker):
        return None
    is_out_of_time = drain.is_forced and any(True for _ in _iter_relevant(snapshot, drain))
    return drain_operations.complete_drain(snapshot, drain.node, context, is_deadline_reached=is_out_of_time)


def is_finished(snapshot: Replica, drain: NodeDrain, tracker: DrainTracker) -> bool:
    """Return whether no allocation has to be moved off the node any more.

    Before the drain's deadline, all allocations except those of system jobs must also have ended. After it, allocations
    that are still stopping are not waited for.
    """
    if not drain.is_forced and not _has_only_system_allocations(snapshot, drain.node.id):
        return False
    jobs = (snapshot.get(JOBS, *key) for key in tracker.iter_jobs_on_node(drain.node.id))
    return not any(
        job is not None and not job.stop and not (drain.ignores_system_jobs and job.type == JobType.SYSTEM)
        for job in jobs
    )


def _has_only_system_allocations(snapshot: Replica, node_id: str) -> bool:
    """Return whether all allocations that use resources of the node belong to system jobs. True for an empty node."""
    return all(_is_system(snapshot, allocation) for allocation in _iter_occupying(snapshot, node_id))


def _iter_relevant(snapshot: Replica, drain: NodeDrain) -> Iterator[Allocation]:
    """Yield the allocations that use resources of the node, without system jobs if the drain ignores them."""
    for allocation in _iter_occupying(snapshot, drain.node.id):
        if not (drain.ignores_system_jobs and _is_system(snapshot, allocation)):
            yield allocation


def _iter_occupying(snapshot: Replica, node_id: str) -> Iterator[Allocation]:
    """Yield the allocations that use resources of the node."""
    return (
        allocation
        for _, allocation in snapshot.iter_by_index(UNFINISHED_ALLOCATIONS_ON_NODE, node_id)
        if allocation.is_occupying
    )


def _is_system(snapshot: Replica, allocation: Allocation) -> bool:
    """Return whether the allocation belongs to a system job."""
    job = snapshot.get(JOBS, allocation.namespace, allocation.job_id)
    return job is not None and job.type == JobType.SYSTEM


def _has_health(allocation: Allocation) -> bool:
    """Return whether the node has reported the allocation's health.

    Allocations without a reported health do not count as healthy, so a drain does not rely on them.
    """
    status = allocation.deployment_status
    return status is not None and status.healthy is not None


def _is_immediate(node: Node) -> bool:
    """Return whether the drain lets allocations leave without any waiting time, which a negative deadline requests."""
    return node.drain_strategy is not None and node.drain_strategy.deadline < 0


def _has_implausible_deadline(node: Node, now_ns: int) -> bool:
    """Return whether the drain's deadline is further away than twice its time limit: the clock was set back."""
    strategy = node.drain_strategy
    if strategy is None or strategy.force_deadline is None:
        return False
    due_ns = to_ns(strategy.force_deadline)
    return due_ns > now_ns and has_passed(due_ns, max(strategy.deadline, 0), now_ns)


def _group_deadlines(nodes: Iterable[Node]) -> Iterator[tuple[int, list[str]]]:
    """Yield the ids of nodes whose drain deadlines are close together, each list with its last deadline in Unix
    nanoseconds.

    A list covers `DEADLINE_WINDOW_NS` from its first deadline on. Nodes without a deadline are left out.
    """
    deadlines = sorted(
        (to_ns(node.drain_strategy.force_deadline), node.id)
        for node in nodes
        if node.drain_strategy is not None and node.drain_strategy.force_deadline is not None
    )
    window_start_ns, window_end_ns, ids = 0, 0, list[str]()
    for deadline_ns, node_id in deadlines:
        if ids and deadline_ns - window_start_ns > DEADLINE_WINDOW_NS:
            yield window_end_ns, ids
            ids = []
        if not ids:
            window_start_ns = deadline_ns
        window_end_ns = deadline_ns
        ids = [*ids, node_id]
    if ids:
        yield window_end_ns, ids
