"""Explain a job: what it waits for, its position in the queue, and what would help.

The explanation depends on the state only, so every server returns the same one. `scheduling.explanation` examines
the nodes.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from wharf.cluster.operations.explanations.text import (
    describe_deployment,
    describe_groups,
    describe_quota_shortage,
    describe_shortage,
    format_allocation_count,
    format_time,
    is_delayed,
    make_placement_explanation,
    summarize_reasons,
)
from wharf.cluster.operations.jobs.periodic import list_next_launches
from wharf.cluster.scheduling.blocked.retry_order import RetryOrder
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.capacity.child_limits import count_running_children, get_max_running
from wharf.cluster.scheduling.explanation.capacity_report import report_capacity
from wharf.cluster.scheduling.explanation.examination import is_served_by
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALLOCATIONS_OF_JOB,
    DEPLOYMENTS_OF_JOB,
    EVALUATIONS_BY_STATUS,
    EVALUATIONS_OF_JOB,
    JOB_SUMMARIES,
    JOBS,
    NODES,
    PERIODIC_LAUNCHES,
    SCHEDULER_CONFIGURATION,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.allocations.task_event_messages import describe_last_failure
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger
from wharf.contract.model.explanations import GroupExplanation, JobExplanation, WaitCondition, WaitReason
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobStatus, JobType
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.refusal import not_found
from wharf.contract.model.times import to_datetime

MAX_PLACEMENTS: Final = 50
"""Number of live allocations explained, newest first. Older ones were placed by the same rules."""

MAX_NAMED_NODES: Final = 3
"""Number of nodes that a text names."""

DELAY_REASONS: Final = {
    EvaluationTrigger.ALLOC_FAILURE: "failed allocations are rescheduled",
    EvaluationTrigger.ALLOC_RESCHEDULE: "failed allocations are rescheduled",
    EvaluationTrigger.MAX_DISCONNECT_TIMEOUT: "allocations on disconnected nodes become lost",
    EvaluationTrigger.FAILED_FOLLOW_UP: "its failed evaluation is repeated",
    EvaluationTrigger.ROLLING_UPDATE: "the next step of its update starts",
}
"""Why an evaluation is delayed, by its trigger."""

RETRY_TRIGGERS: Final = (EvaluationTrigger.ALLOC_FAILURE, EvaluationTrigger.ALLOC_RESCHEDULE)
FAILED_CLIENT_STATUSES: Final = (ClientStatus.FAILED, ClientStatus.LOST)

SchedulerCacheFactory = Callable[[], SchedulerCache]


def explain_job(
    snapshot: Replica, namespace: str, job_id: str, get_cache: SchedulerCacheFactory | None = None
) -> JobExplanation:
    """Return the explanation of a job. Raises not-found if it does not exist.

    The scheduler's cache of nodes is used only if an allocation cannot be placed.
    """
    job = snapshot.get(JOBS, namespace, job_id)
    if job is None:
        raise not_found("job not found")
    return JobExplainer(snapshot, job, get_cache or (lambda: SchedulerCache.from_snapshot(snapshot))).explain()


class JobExplainer:
    """Explains one job at one snapshot. Collects the job's evaluations, allocations and deployments once."""

    def __init__(self, snapshot: Replica, job: Job, get_cache: SchedulerCacheFactory) -> None:
        self._snapshot = snapshot
        self._job = job
        self._get_cache = get_cache
        key = (job.namespace, job.id)
        self._evaluations = sorted(
            snapshot.list_by_index(EVALUATIONS_OF_JOB, *key), key=lambda e: (e.create_index, e.id)
        )
        self._allocations = sorted(
            snapshot.list_by_index(ALLOCATIONS_OF_JOB, *key), key=lambda a: (a.create_index, a.id)
        )
        self._deployments = sorted(
            snapshot.list_by_index(DEPLOYMENTS_OF_JOB, *key), key=lambda d: (d.create_index, d.id)
        )
        self._pending = [e for e in self._evaluations if e.status is EvaluationStatus.PENDING]
        self._blocked = [e for e in self._evaluations if e.status is EvaluationStatus.BLOCKED]
        self._live = [a for a in self._allocations if not a.is_terminal]
        self._unplaced = self._count_missing_by_group()

    def explain(self) -> JobExplanation:
        """Return the explanation."""
        # Only the children of such a job have allocations.
        is_parent = self._job.is_periodic or self._job.is_parameterized
        groups = () if is_parent else tuple(self._explain_group(group) for group in self._job.groups)
        waits = tuple(self._list_wait_conditions(groups))
        position, length = self._get_queue_position() if not self._blocked else self._blocked_queue_position
        return JobExplanation(
            job_id=self._job.id,
            namespace=self._job.namespace,
            status=self._job.status.value,
            text=self._make_text(waits),
            waits=waits,
            queue_place=position,
            queue_length=length,
            groups=groups,
            placements=tuple(make_placement_explanation(each) for each in reversed(self._live[-MAX_PLACEMENTS:])),
        )

    def _make_text(self, waits: Sequence[WaitCondition]) -> str:
        """Return the summary: the most urgent wait condition, and the number of others."""
        first = waits[0].text
        more = len(waits) - 1
        return f"{self._job.id} {first}" + (f" (and {more} more)" if more else "")

    # -- wait conditions ----------------------------------------------------------------------------------------

    def _list_wait_conditions(self, groups: Sequence[GroupExplanation]) -> list[WaitCondition]:
        """Return what the job waits for, most urgent first; at least one entry."""
        found = [
            *self._iter_pause_waits(),
            *self._iter_queue_waits(),
            *self._iter_capacity_waits(groups),
            *self._iter_deployment_waits(),
            *self._iter_delay_waits(),
            *self._iter_drain_waits(),
            *self._iter_node_waits(),
            *self._iter_task_waits(),
        ]
        return found or [self._describe_idle_state()]

    def _iter_pause_waits(self) -> Iterator[WaitCondition]:
        """Yield a wait condition if the scheduler is paused and evaluations of the job are pending."""
        configuration = self._snapshot.get(SCHEDULER_CONFIGURATION)
        if configuration is not None and configuration.pause_eval_broker and self._pending:
            text = "waits for the scheduler to be resumed: an operator paused it"
            yield WaitCondition(waits_for=WaitReason.PAUSED_SCHEDULER, text=text)

    def _iter_queue_waits(self) -> Iterator[WaitCondition]:
        """Yield the position of the job's first pending evaluation that is due."""
        for evaluation in self._pending:
            if not is_delayed(evaluation):
                position, length = self._get_queue_position()
                text = (
                    f"waits for its evaluation ({evaluation.triggered_by.value}): {position} of {length} in the queue"
                )
                yield WaitCondition(waits_for=WaitReason.QUEUE, text=text, eval_id=evaluation.id)
                return

    def _iter_delay_waits(self) -> Iterator[WaitCondition]:
        """Yield evaluations that are delayed until a later time."""
        for evaluation in self._pending:
            if is_delayed(evaluation):
                time_text = f"at {format_time(evaluation.wait_until)}" if evaluation.wait_until is not None else "soon"
                what = DELAY_REASONS.get(evaluation.triggered_by, "it is evaluated again")
                if evaluation.triggered_by in RETRY_TRIGGERS and not self._is_failure_the_reason():
                    what = "allocations on disconnected nodes are replaced"
                yield WaitCondition(
                    waits_for=WaitReason.DELAY, text=f"waits: {what} {time_text}", eval_id=evaluation.id
                )

    def _is_failure_the_reason(self) -> bool:
        """Return whether failures, rather than disconnected nodes, are the reason for delayed replacements.

        That is so if no node is disconnected, or if a failed allocation has no replacement yet.
        """
        disconnected = any(each.client_status is ClientStatus.UNKNOWN for each in self._live)
        failed = (each for each in self._allocations if each.client_status in FAILED_CLIENT_STATUSES)
        return not disconnected or any(not each.next_allocation for each in failed)

    def _iter_capacity_waits(self, groups: Sequence[GroupExplanation]) -> Iterator[WaitCondition]:
        """Yield what the blocked evaluations wait for: a slot, quota or resources."""
        goal = " to place all allocations at once (AllAtOnce)" if self._is_all_at_once else ""
        for evaluation in self._blocked:
            if evaluation.waits_behind:
                yield WaitCondition(
                    waits_for=WaitReason.SCHEDULING_SLOT,
                    text=self._describe_slot_wait(evaluation),
                    eval_id=evaluation.id,
                )
                continue
            if evaluation.quota_limit_reached:
                text = f'waits for capacity in the quota "{evaluation.quota_limit_reached}": {describe_quota_shortage(evaluation)}'
                yield WaitCondition(waits_for=WaitReason.QUOTA, text=text, eval_id=evaluation.id)
                continue
            unplaced_groups = [
                each for each in groups if each.group in (evaluation.failed_tg_allocs or {}) and each.text
            ]
            if evaluation.triggered_by is EvaluationTrigger.MAX_PLAN_ATTEMPTS and not unplaced_groups:
                text = "had too many conflicts with other changes during placement, and is retried within a minute"
            else:
                text = f"waits for resources{goal}: {describe_groups(unplaced_groups) or 'the last scheduling pass found no node'}"
            yield WaitCondition(
                waits_for=WaitReason.CAPACITY,
                text=text + self._describe_queue_position(evaluation),
                eval_id=evaluation.id,
            )

    def _describe_queue_position(self, evaluation: Evaluation) -> str:
        """Return the position in the blocked queue, unless it is the only entry, and the reserved node."""
        position, length = self._blocked_queue_position
        text = ""
        if length > 1:
            since = format_time(to_datetime(evaluation.waiting_since_ns))
            text = f"; it is {position} of {length} in the queue, since {since}"
        if not evaluation.reserved_node_id:
            return text
        node = self._snapshot.get(NODES, evaluation.reserved_node_id)
        name = node.name if node is not None else evaluation.reserved_node_id
        return f"{text}; node {name} is reserved for it, because it has waited long"

    def _describe_slot_wait(self, evaluation: Evaluation) -> str:
        """Return how many children of the parent run, its limit, and what would let this one start."""
        parent_id = evaluation.waits_behind
        parent = self._snapshot.get(JOBS, evaluation.namespace, parent_id)
        running = count_running_children(self._snapshot, evaluation.namespace, parent_id)
        limit = 0 if parent is None else get_max_running(parent)
        position, length = self._blocked_queue_position
        needed = running + position
        remedy = (
            f"raise max_running of {parent_id} to {needed} to start it now"
            if needed > limit
            else "it starts with its next evaluation"
        )
        return (
            f"waits for a slot of {parent_id}: {running} of at most {limit} children are running; it is {position} "
            f"of {length} in the queue; {remedy}"
        )

    @functools.cached_property
    def _blocked_queue_position(self) -> tuple[int, int]:
        """The job's position in the blocked queue, and the queue's length.

        The queue holds evaluations that wait for resources, or those that wait for a slot of the same parent.
        """
        own = self._blocked[0]
        blocked = self._snapshot.list_by_index(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED)
        key = own.namespace, own.waits_behind
        if own.waits_behind:
            siblings = [each for each in blocked if (each.namespace, each.waits_behind) == key]
            queue = sorted(siblings, key=lambda each: (each.waiting_since_ns, each.create_index, each.id))
        else:
            waiting = [each for each in blocked if not each.waits_behind]
            queue = RetryOrder(self._snapshot, self._get_cache()).sort_evaluations(waiting)
        return next(position for position, each in enumerate(queue, start=1) if each.id == own.id), len(queue)

    def _iter_deployment_waits(self) -> Iterator[WaitCondition]:
        """Yield what the newest deployment waits for, if it is of the current version."""
        deployment = self._deployments[-1] if self._deployments else None
        if deployment is None or deployment.job_version != self._job.version or self._job.stop:
            return
        wait = describe_deployment(deployment)
        # An allocation that is not placed cannot be healthy: then the missing resources are the reason.
        if wait is not None and not (wait[0] is WaitReason.HEALTH and self._blocked):
            yield WaitCondition(waits_for=wait[0], text=wait[1], deployment_id=deployment.id)

    def _iter_drain_waits(self) -> Iterator[WaitCondition]:
        """Yield the allocations on draining nodes."""
        on_draining_nodes = [
            each for each in self._allocations if each.is_occupying and self._is_draining(each.node_id)
        ]
        if on_draining_nodes:
            text = f"has {format_allocation_count(len(on_draining_nodes))} on {self._join_node_names(on_draining_nodes)} (being drained)"
            yield WaitCondition(waits_for=WaitReason.DRAIN, text=text)

    def _is_draining(self, node_id: str) -> bool:
        """Return whether the node is being drained."""
        node = self._snapshot.get(NODES, node_id)
        return node is not None and node.drain_strategy is not None

    def _iter_node_waits(self) -> Iterator[WaitCondition]:
        """Yield the allocations on nodes that are out of contact."""
        disconnected = [each for each in self._live if not self._is_in_contact(each.node_id)]
        if disconnected:
            text = f"has {format_allocation_count(len(disconnected))} on {self._join_node_names(disconnected)} (out of contact)"
            yield WaitCondition(waits_for=WaitReason.NODE, text=text)

    def _is_in_contact(self, node_id: str) -> bool:
        """Return whether the node exists and is ready."""
        node = self._snapshot.get(NODES, node_id)
        return node is not None and node.status is NodeStatus.READY

    def _join_node_names(self, allocations: Sequence[Allocation]) -> str:
        """Return the names of the first nodes of these allocations, and how many more there are."""
        names = sorted({each.node_name or each.node_id for each in allocations})
        more = len(names) - MAX_NAMED_NODES
        return ", ".join(names[:MAX_NAMED_NODES]) + (f" and {more} more nodes" if more > 0 else "")

    def _iter_task_waits(self) -> Iterator[WaitCondition]:
        """Yield allocations that are starting, restarting or stopping."""
        starting = [each for each in self._live if each.client_status is ClientStatus.PENDING]
        restart_reasons = {
            each.name: failure_text for each in starting if (failure_text := describe_last_failure(each.task_states))
        }
        if restart_reasons:
            text = f"has {format_allocation_count(len(restart_reasons))} waiting to be restarted ({summarize_reasons(restart_reasons)})"
            yield WaitCondition(waits_for=WaitReason.TASKS, text=text)
        elif starting:
            text = f"has {format_allocation_count(len(starting))} placed but not started yet"
            yield WaitCondition(waits_for=WaitReason.TASKS, text=text)
        stopping = [each for each in self._allocations if each.is_server_terminal and each.is_occupying]
        if stopping:
            text = f"has {format_allocation_count(len(stopping))} stopping, which their nodes have not ended yet"
            yield WaitCondition(waits_for=WaitReason.TASKS, text=text)

    def _describe_idle_state(self) -> WaitCondition:
        """Return the state of a job that waits for nothing: as requested, or unchanged until a user acts."""
        job = self._job
        if job.stop:
            children = self._describe_children()
            what = f"launches no more children{children}" if children else "has no running allocation"
            return WaitCondition(waits_for=WaitReason.NOTHING, text=f"is stopped and {what}")
        if job.is_parameterized:
            return WaitCondition(
                waits_for=WaitReason.DISPATCH, text=f"waits to be dispatched{self._describe_children()}"
            )
        if job.is_periodic:
            return self._describe_next_launch()
        failed = self._evaluations[-1] if self._evaluations else None
        if failed is not None and failed.status is EvaluationStatus.FAILED:
            text = f"does not change, because its last evaluation failed: {failed.status_description}"
            return WaitCondition(waits_for=WaitReason.CHANGE, text=text, eval_id=failed.id)
        missing = sum(self._unplaced.values())
        if not missing:
            return WaitCondition(waits_for=WaitReason.NOTHING, text=self._describe_steady_state())
        failed_allocations = [each for each in self._allocations if each.client_status in FAILED_CLIENT_STATUSES]
        reasons = {
            each.name: failure_text
            for each in failed_allocations
            if (failure_text := describe_last_failure(each.task_states))
        }
        reason_text = f" ({summarize_reasons(reasons)})" if reasons else ""
        if job.status is JobStatus.DEAD:
            text = f"is dead: its policies allow no further attempt after failures{reason_text}"
            return WaitCondition(waits_for=WaitReason.CHANGE, text=text)
        if failed_allocations:
            text = f"lacks {format_allocation_count(missing)} that failed as often as its policies allow{reason_text}"
            return WaitCondition(waits_for=WaitReason.CHANGE, text=text)
        if not any(group.count for group in job.groups):
            return WaitCondition(waits_for=WaitReason.NOTHING, text="requests no allocation")
        return WaitCondition(
            waits_for=WaitReason.UNKNOWN,
            text=f"lacks {format_allocation_count(missing)} and no evaluation is pending: evaluate the job, and report this as a bug",
        )

    def _describe_next_launch(self) -> WaitCondition:
        """Return when a periodic job is launched next."""
        job = self._job
        last_launch = self._snapshot.get(PERIODIC_LAUNCHES, job.namespace, job.id)
        if not job.is_active_periodic:
            return WaitCondition(waits_for=WaitReason.CHANGE, text="is periodic but not enabled")
        found = list_next_launches(job, last_launch.launch, max_launches=1) if last_launch is not None else []
        if not found:
            text = (
                f"is launched on request only, because its schedule has no launch time left{self._describe_children()}"
            )
            return WaitCondition(waits_for=WaitReason.CHANGE, text=text)
        return WaitCondition(
            waits_for=WaitReason.LAUNCH, text=f"is launched next at {format_time(found[0])}{self._describe_children()}"
        )

    def _describe_children(self) -> str:
        """Return how many children are running or pending, or an empty text."""
        summary = self._snapshot.get(JOB_SUMMARIES, self._job.namespace, self._job.id)
        children = summary.children if summary is not None else None
        if children is None or not children.running + children.pending:
            return ""
        counts = ((children.running, "running"), (children.pending, "pending"))
        texts = [f"{count} {status}" for count, status in counts if count]
        return f"; its children: {', '.join(texts)}"

    def _describe_steady_state(self) -> str:
        """Return how the job runs or has ended, if no allocation is missing."""
        if self._live:
            return f"runs as requested: {format_allocation_count(len(self._live))}"
        complete = [each for each in self._allocations if each.client_status is ClientStatus.COMPLETE]
        # A batch allocation that was stopped, by a user or at the deadline of a drain, is not replaced.
        stopped = [each for each in complete if each.is_server_terminal and not each.next_allocation]
        ended = len(complete) - len(stopped)
        if stopped and self._job.is_finite:
            completed_text = f"{format_allocation_count(ended)} completed, and " if ended else ""
            outcome = f"{completed_text}{format_allocation_count(len(stopped))} {'was' if len(stopped) == 1 else 'were'} stopped before completion"
            return f"is dead: {outcome} ({summarize_reasons({each.name: each.desired_description or 'stopped on request' for each in stopped})})"
        if complete:
            return f"is done: {format_allocation_count(len(complete))} completed"
        return "requests no allocation that could run now"

    # -- groups and the queue --------------------------------------------------------------------------------------

    @property
    def _is_all_at_once(self) -> bool:
        """Whether all allocations of the job must be placed together."""
        return self._job.all_at_once and not self._job.runs_on_every_node

    def _count_missing_by_group(self) -> dict[str, int]:
        """Return how many allocations each group lacks.

        System jobs are left out: their number depends on the nodes, which are examined only if an evaluation is
        blocked.
        """
        job = self._job
        if job.stop or job.is_periodic or job.is_parameterized:
            return {}
        missing = {}
        for group in job.groups:
            if job.runs_on_every_node:
                continue
            counted = sum(each.task_group == group.name and self._counts_as_placed(each) for each in self._allocations)
            missing[group.name] = max(0, group.count - counted)
        return missing

    def _counts_as_placed(self, allocation: Allocation) -> bool:
        """Return whether the allocation counts toward the group's count: it is live, or a completed batch allocation."""
        if allocation.job_create_index != self._job.create_index:
            return False
        is_done = self._job.type == JobType.BATCH and allocation.client_status is ClientStatus.COMPLETE
        return not allocation.is_terminal or is_done

    def _count_desired(self, group: TaskGroup) -> int:
        """Return the desired number of allocations of the group. For system jobs: the number of nodes that have one."""
        if self._job.stop:
            return 0
        if not self._job.runs_on_every_node:
            return group.count
        own = (each for each in self._allocations if each.task_group == group.name and is_served_by(self._job, each))
        return len({each.node_id for each in own})

    def _explain_group(self, group: TaskGroup) -> GroupExplanation:
        """Return the counts of the group, and why allocations of it cannot be placed."""
        own = [each for each in self._live if each.task_group == group.name]
        unplaced = self._unplaced.get(group.name, 0)
        base = GroupExplanation(
            group=group.name,
            wanted=self._count_desired(group),
            running=sum(each.client_status is ClientStatus.RUNNING for each in own),
            starting=sum(each.client_status is ClientStatus.PENDING for each in own),
            unplaced=unplaced,
        )
        waiting = next(
            (each for each in self._blocked if group.name in (each.failed_tg_allocs or {}) and not each.waits_behind),
            None,
        )
        if waiting is None:
            return base
        report = report_capacity(self._get_cache(), self._snapshot, self._job, group, self._allocations)
        desired = base.wanted
        if self._job.runs_on_every_node:
            # If no node can run it, one allocation is missing nevertheless.
            unplaced = report.unserved_nodes or int(not desired)
            desired += unplaced
        return GroupExplanation(
            group=base.group,
            wanted=desired,
            running=base.running,
            starting=base.starting,
            unplaced=unplaced,
            text=describe_shortage(
                group,
                max(1, unplaced),
                report,
                quota_name=waiting.quota_limit_reached,
                is_all_or_nothing=self._is_all_at_once,
            ),
            nodes=report.nodes,
            fitting=report.fitting,
            excluded=report.excluded,
            exhausted=report.exhausted,
            smallest_change=report.smallest_change,
        )

    def _get_queue_position(self) -> tuple[int, int]:
        """Return the position of the job's first due evaluation in the queue, and the queue's length; 0 if there is
        none.
        """
        own = {each.id for each in self._pending if not is_delayed(each)}
        if not own:
            return 0, 0
        pending = self._snapshot.list_by_index(EVALUATIONS_BY_STATUS, EvaluationStatus.PENDING)
        queue = sorted((-each.priority, each.create_index, each.id) for each in pending if not is_delayed(each))
        return next(position for position, each in enumerate(queue, start=1) if each[2] in own), len(queue)


def list_unexplained_jobs(snapshot: Replica) -> list[str]:
    """Return jobs that lack allocations for no known reason. In a settled cluster the list must be empty."""
    caches: list[SchedulerCache] = []

    def get_cache() -> SchedulerCache:
        if not caches:
            caches.append(SchedulerCache.from_snapshot(snapshot))
        return caches[0]

    explanations = (explain_job(snapshot, job.namespace, job.id, get_cache) for job in snapshot.iter_by_key(JOBS))
    return [f"{each.namespace}/{each.job_id}: {each.text}" for each in explanations if not each.is_explained]
