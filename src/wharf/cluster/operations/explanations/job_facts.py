"""The records of one job that its explanation is based on, counted and sorted once. Contains no texts."""

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from heapq import nlargest
from operator import attrgetter
from typing import Final

from wharf.cluster.operations.explanations.arrays import ArrayFacts, read_array_facts
from wharf.cluster.operations.explanations.locks import find_lock_place
from wharf.cluster.operations.explanations.text import is_delayed
from wharf.cluster.scheduling.blocked.retry_order import RetryOrder
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.explanation.examination import is_served_by
from wharf.cluster.scheduling.steps.facts import read_snapshot_run
from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import read_element_states
from wharf.cluster.state.tables import (
    ALLOCATIONS_OF_JOB,
    DEPLOYMENTS_OF_JOB,
    EVALUATIONS_BY_STATUS,
    EVALUATIONS_OF_JOB,
    NODES,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.jobs.step_states import StepPhase
from wharf.contract.model.nodes.node import Node

SchedulerCacheFactory = Callable[[], SchedulerCache]
"""Returns the scheduler's cache of nodes for the snapshot.

Callers call it only if they need it, because it is expensive.
"""


LIVE_STATUSES: Final = tuple(status for status in ClientStatus if not status.is_terminal)
get_creation_order: Final = attrgetter("create_index", "id")
"""Sorts allocations, oldest first."""


class JobFacts:
    """The facts on which the explanation of one job is based: its records at one snapshot, and its position in the
    queues.
    """

    def __init__(
        self, snapshot: Replica, job: Job, get_cache: SchedulerCacheFactory, now_ns: int | None = None
    ) -> None:
        self.snapshot = snapshot
        self.now_ns = now_ns  # `None` if the caller needs no times.
        self.job = job
        self.get_cache = get_cache
        key = (job.namespace, job.id)
        self.evaluations = sorted(
            snapshot.list_by_index(EVALUATIONS_OF_JOB, *key), key=lambda e: (e.create_index, e.id)
        )
        """All evaluations of the job, oldest first."""
        self.allocations = snapshot.list_by_index(ALLOCATIONS_OF_JOB, *key)
        """All allocations of the job, in arbitrary order: a job may have 100,000, and an explanation shows few of them."""
        self.deployments = sorted(
            snapshot.list_by_index(DEPLOYMENTS_OF_JOB, *key), key=lambda d: (d.create_index, d.id)
        )
        """All deployments of the job, oldest first."""
        self.pending = [e for e in self.evaluations if e.status is EvaluationStatus.PENDING]
        self.blocked = [e for e in self.evaluations if e.status is EvaluationStatus.BLOCKED]
        # The test of `Allocation.is_terminal`, written out: it is made for every allocation.
        self.live = [
            each
            for each in self.allocations
            if each.desired_status is DesiredStatus.RUN and each.client_status in LIVE_STATUSES
        ]
        """The allocations that are not terminal, in arbitrary order."""
        self.live_counts = Counter((each.task_group, each.client_status) for each in self.live)
        """How many live allocations each group has in each status."""
        self.run = read_snapshot_run(snapshot, job) if job.is_run else None
        """The steps of the job; `None` if it has none."""
        self.arrays = self._read_arrays()
        """The facts about the arrays of the job; none if only its children run."""
        self.unplaced = self._count_missing_by_group()  # By group, how many allocations are missing.

    @property
    def is_all_at_once(self) -> bool:
        """Whether all allocations of the job must be placed together or not at all."""
        return self.job.all_at_once and not self.job.runs_on_every_node

    @functools.cached_property
    def sorted_allocations(self) -> list[Allocation]:
        """All allocations of the job, oldest first."""
        return sorted(self.allocations, key=get_creation_order)

    def list_newest_live(self, limit: int) -> list[Allocation]:
        """Return the newest live allocations, the newest first."""
        return nlargest(limit, self.live, key=get_creation_order)

    def find_nodes(self, allocations: Iterable[Allocation], is_selected: Callable[[Node | None], bool]) -> set[str]:
        """Return the ids of the nodes of these allocations that `is_selected` accepts. A deleted node is `None`."""
        return {
            node_id
            for node_id in {each.node_id for each in allocations}
            if is_selected(self.snapshot.get(NODES, node_id))
        }

    @functools.cached_property
    def blocked_queue_position(self) -> tuple[int, int]:
        """The position of the job's first blocked evaluation in the queue of blocked ones, from 1, and the queue's
        length.

        The queue holds the evaluations that wait for resources, or, for a child job, those that wait for a slot of the
        same parent, or for a step those that wait for the same lock.
        """
        own = self.blocked[0]
        if own.waits_only_for_locks and own.lock_waits:
            first = next(wait for wait in own.lock_waits if not wait.lacks_capacity)
            return find_lock_place(self.snapshot, own.namespace, own.job_id, first)
        blocked = self.snapshot.list_by_index(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED)
        key = own.namespace, own.waits_behind
        if own.waits_behind:
            siblings = [each for each in blocked if (each.namespace, each.waits_behind) == key]
            queue = sorted(siblings, key=lambda each: (each.waiting_since_ns, each.create_index, each.id))
        else:
            waiting = [each for each in blocked if not each.waits_behind and not each.waits_only_for_locks]
            queue = RetryOrder(self.snapshot, self.get_cache()).sort_evaluations(waiting)
        return next(position for position, each in enumerate(queue, start=1) if each.id == own.id), len(queue)

    def get_queue_position(self) -> tuple[int, int]:
        """Return the position of the job's first due evaluation among all due ones, from 1, and their number.

        Return (0, 0) if the job has none.
        """
        own = {each.id for each in self.pending if not is_delayed(each)}
        if not own:
            return 0, 0
        pending = self.snapshot.list_by_index(EVALUATIONS_BY_STATUS, EvaluationStatus.PENDING)
        queue = sorted((-each.priority, each.create_index, each.id) for each in pending if not is_delayed(each))
        return next(position for position, each in enumerate(queue, start=1) if each[2] in own), len(queue)

    def _read_arrays(self) -> list[ArrayFacts]:
        """Return the facts about the arrays of the job."""
        job = self.job
        if job.is_periodic or job.is_parameterized:
            return []
        run = self.run
        return [
            read_array_facts(
                self.snapshot,
                job,
                group,
                run.steps[group.name].states
                if run is not None
                else read_element_states(self.snapshot, job, group.name),
            )
            for group in job.groups
            if group.array is not None
        ]

    def _count_missing_by_group(self) -> dict[str, int]:
        """Return how many allocations each group lacks.

        Empty for stopped, periodic and parameterized jobs. System jobs are left out too: their number depends on the
        nodes, which are examined only if an evaluation is blocked.
        """
        job = self.job
        if job.stop or job.is_periodic or job.is_parameterized or job.runs_on_every_node:
            return {}
        # Active allocations and completed ones of a batch job count, but none of an earlier job of the same name.
        create_index, is_batch = job.create_index, job.type == JobType.BATCH
        failed_names = self._names_failed_now
        placed = Counter(
            each.task_group
            for each in self.allocations
            if each.job_create_index == create_index
            and (
                (each.desired_status is DesiredStatus.RUN and each.client_status in LIVE_STATUSES)
                or (
                    is_batch
                    and each.client_status is ClientStatus.COMPLETE
                    and not each.is_interrupted
                    and (each.job_version == job.version or each.name not in failed_names)
                )
            )
        )
        missing = {each.group.name: each.unplaced for each in self.arrays if not self._must_wait(each.group)}
        for group in job.groups:
            if group.array is None:
                missing[group.name] = max(0, group.count - placed[group.name])
        return missing

    @functools.cached_property
    def _names_failed_now(self) -> set[str]:
        """The names of the allocations of the current version that failed. Success of an earlier version is not theirs."""
        return {
            each.name
            for each in self.allocations
            if each.client_status is ClientStatus.FAILED and each.is_of_version(self.job)
        }

    def _must_wait(self, group: TaskGroup) -> bool:
        """Return whether no element of the group may begin now, because the step is not ready."""
        return self.run is not None and self.run.steps[group.name].facts.state.phase is not StepPhase.READY

    def count_complete(self, group: TaskGroup) -> int:
        """Return how many allocations of a group of a batch job have completed; 0 for an array, which counts elements."""
        return 0 if group.array is not None else self._complete_counts[group.name]

    @functools.cached_property
    def _open_counts(self) -> dict[str, int]:
        """How many elements of each array have not ended."""
        return {each.group.name: each.counts.waiting for each in self.arrays}

    @functools.cached_property
    def _complete_counts(self) -> Counter[str]:
        """How many allocations of each group of a batch job have completed and were not stopped."""
        if self.job.type != JobType.BATCH:
            return Counter()
        create_index = self.job.create_index
        return Counter(
            each.task_group
            for each in self.allocations
            if each.job_create_index == create_index
            and each.client_status is ClientStatus.COMPLETE
            and each.desired_status is DesiredStatus.RUN
            and not each.is_interrupted
            and (each.job_version == self.job.version or each.name not in self._names_failed_now)
        )

    def count_running_canaries(self, group: TaskGroup) -> int:
        """Return how many canaries of the group run beside its other allocations.

        A canary of a system job replaces another allocation, and is not counted.
        """
        if self.job.runs_on_every_node:
            return 0
        return sum(
            each.task_group == group.name
            and each.client_status is ClientStatus.RUNNING
            and each.deployment_status is not None
            and each.deployment_status.canary
            for each in self.live
        )

    def count_desired(self, group: TaskGroup) -> int:
        """Return the desired number of allocations of the group; 0 if the job is stopped.

        For system jobs, return the number of nodes that have an allocation.
        """
        if self.job.stop:
            return 0
        if group.array is not None:
            return self._open_counts.get(group.name, 0)
        if not self.job.runs_on_every_node:
            return group.count
        own = (each for each in self.allocations if each.task_group == group.name and is_served_by(self.job, each))
        return len({each.node_id for each in own})
