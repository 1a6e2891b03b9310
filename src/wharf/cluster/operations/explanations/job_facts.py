"""The records of one job that its explanation is based on, counted and sorted once. Contains no texts."""

import functools
from collections.abc import Callable

from wharf.cluster.operations.explanations.text import is_delayed
from wharf.cluster.scheduling.blocked.retry_order import RetryOrder
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.explanation.examination import is_served_by
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, DEPLOYMENTS_OF_JOB, EVALUATIONS_BY_STATUS, EVALUATIONS_OF_JOB
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobType

SchedulerCacheFactory = Callable[[], SchedulerCache]
"""Returns the scheduler's cache of nodes for the snapshot.

Callers call it only if they need it, because it is expensive.
"""


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
        self.allocations = sorted(
            snapshot.list_by_index(ALLOCATIONS_OF_JOB, *key), key=lambda a: (a.create_index, a.id)
        )
        """All allocations of the job, oldest first."""
        self.deployments = sorted(
            snapshot.list_by_index(DEPLOYMENTS_OF_JOB, *key), key=lambda d: (d.create_index, d.id)
        )
        """All deployments of the job, oldest first."""
        self.pending = [e for e in self.evaluations if e.status is EvaluationStatus.PENDING]
        self.blocked = [e for e in self.evaluations if e.status is EvaluationStatus.BLOCKED]
        self.live = [a for a in self.allocations if not a.is_terminal]  # Allocations that are not terminal.
        self.unplaced = self._count_missing_by_group()  # By group, how many allocations are missing.

    @property
    def is_all_at_once(self) -> bool:
        """Whether all allocations of the job must be placed together or not at all."""
        return self.job.all_at_once and not self.job.runs_on_every_node

    @functools.cached_property
    def blocked_queue_position(self) -> tuple[int, int]:
        """The position of the job's first blocked evaluation in the queue of blocked ones, from 1, and the queue's
        length.

        The queue holds the evaluations that wait for resources, or, for a child job, those that wait for a slot of the
        same parent.
        """
        own = self.blocked[0]
        blocked = self.snapshot.list_by_index(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED)
        key = own.namespace, own.waits_behind
        if own.waits_behind:
            siblings = [each for each in blocked if (each.namespace, each.waits_behind) == key]
            queue = sorted(siblings, key=lambda each: (each.waiting_since_ns, each.create_index, each.id))
        else:
            waiting = [each for each in blocked if not each.waits_behind]
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

    def _count_missing_by_group(self) -> dict[str, int]:
        """Return how many allocations each group lacks.

        Empty for stopped, periodic and parameterized jobs. System jobs are left out too: their number depends on the
        nodes, which are examined only if an evaluation is blocked.
        """
        job = self.job
        if job.stop or job.is_periodic or job.is_parameterized or job.runs_on_every_node:
            return {}
        missing = {}
        for group in job.groups:
            counted = sum(each.task_group == group.name and self._counts_as_placed(each) for each in self.allocations)
            missing[group.name] = max(0, group.count - counted)
        return missing

    def _counts_as_placed(self, allocation: Allocation) -> bool:
        """Return whether the allocation counts toward its group's count: it is active, or a completed batch allocation.

        Allocations of an earlier job of the same name never count.
        """
        if allocation.job_create_index != self.job.create_index:
            return False
        is_done = self.job.type == JobType.BATCH and allocation.client_status is ClientStatus.COMPLETE
        return not allocation.is_terminal or is_done

    def count_desired(self, group: TaskGroup) -> int:
        """Return the desired number of allocations of the group; 0 if the job is stopped.

        For system jobs, return the number of nodes that have an allocation.
        """
        if self.job.stop:
            return 0
        if not self.job.runs_on_every_node:
            return group.count
        own = (each for each in self.allocations if each.task_group == group.name and is_served_by(self.job, each))
        return len({each.node_id for each in own})
