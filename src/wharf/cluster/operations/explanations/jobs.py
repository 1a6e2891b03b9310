"""Explain a job: what it waits for, its position in the queue, and what would help.

The explanation depends on the state only, so every server returns the same one. `scheduling.explanation` examines
the nodes.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from wharf.cluster.operations.explanations.idle_jobs import FAILED_CLIENT_STATUSES, describe_idle_state
from wharf.cluster.operations.explanations.job_facts import JobFacts, SchedulerCacheFactory
from wharf.cluster.operations.explanations.shortages import add_shortage
from wharf.cluster.operations.explanations.text import (
    describe_deployment,
    describe_groups,
    describe_quota_shortage,
    format_allocation_count,
    format_time,
    is_delayed,
    make_placement_explanation,
    summarize_reasons,
)
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.capacity.child_limits import count_running_children, get_max_running
from wharf.cluster.scheduling.explanation.capacity_report import report_capacity
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    JOBS,
    NODES,
    SCHEDULER_CONFIGURATION,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.allocations.task_event_messages import describe_last_failure
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.evaluations import Evaluation, EvaluationTrigger
from wharf.contract.model.explanations import GroupExplanation, JobExplanation, WaitCondition, WaitReason
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.namespaces import DEFAULT_NAMESPACE
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
"""Triggers of evaluations that replace failed allocations, or allocations on disconnected nodes."""


def explain_job(
    snapshot: Replica,
    namespace: str,
    job_id: str,
    get_cache: SchedulerCacheFactory | None = None,
    *,
    now_ns: int | None = None,
) -> JobExplanation:
    """Return the explanation of a job: what it waits for, its queue position, and what would help. Raises not-found.

    With `now_ns`, the next launch of a periodic job is not in the past. `get_cache` returns the scheduler's cache of nodes; it is called only if an allocation cannot be placed.
    """
    job = snapshot.get(JOBS, namespace, job_id)
    if job is None:
        raise not_found("job not found")
    facts = JobFacts(snapshot, job, get_cache or (lambda: SchedulerCache.from_snapshot(snapshot)), now_ns)
    return JobExplainer(facts).explain()


class JobExplainer:
    """Builds the explanation of one job from its records."""

    def __init__(self, facts: JobFacts) -> None:
        self._facts = facts

    def explain(self) -> JobExplanation:
        """Return the explanation of the job."""
        # Only the children of such a job have allocations.
        is_parent = self._facts.job.is_periodic or self._facts.job.is_parameterized
        groups = () if is_parent else tuple(self._explain_group(group) for group in self._facts.job.groups)
        waits = tuple(self._list_wait_conditions(groups))
        position, length = (
            self._facts.get_queue_position() if not self._facts.blocked else self._facts.blocked_queue_position
        )
        return JobExplanation(
            job_id=self._facts.job.id,
            namespace=self._facts.job.namespace,
            status=self._facts.job.status.value,
            text=self._make_text(waits),
            waits=waits,
            queue_place=position,
            queue_length=length,
            groups=groups,
            placements=tuple(make_placement_explanation(each) for each in reversed(self._facts.live[-MAX_PLACEMENTS:])),
        )

    def _make_text(self, waits: Sequence[WaitCondition]) -> str:
        """Return the summary: the most urgent wait condition, and how many others there are."""
        first = waits[0].text
        more = len(waits) - 1
        return f"{self._facts.job.id} {first}" + (f" (and {more} more)" if more else "")

    def _list_wait_conditions(self, groups: Sequence[GroupExplanation]) -> list[WaitCondition]:
        """Return what the job waits for, most urgent first.

        If it waits for nothing, the only entry describes its state.
        """
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
        return found or [describe_idle_state(self._facts)]

    def _iter_pause_waits(self) -> Iterator[WaitCondition]:
        """Yield a wait condition if the scheduler is paused and evaluations of the job are pending."""
        configuration = self._facts.snapshot.get(SCHEDULER_CONFIGURATION)
        if configuration is not None and configuration.pause_eval_broker and self._facts.pending:
            text = "waits for the scheduler to be resumed: an operator paused it"
            yield WaitCondition(waits_for=WaitReason.PAUSED_SCHEDULER, text=text)

    def _iter_queue_waits(self) -> Iterator[WaitCondition]:
        """Yield a wait condition for the job's first pending evaluation that is due, with its position in the queue."""
        for evaluation in self._facts.pending:
            if not is_delayed(evaluation):
                position, length = self._facts.get_queue_position()
                text = (
                    f"waits for its evaluation ({evaluation.triggered_by.value}): {position} of {length} in the queue"
                )
                yield WaitCondition(waits_for=WaitReason.QUEUE, text=text, eval_id=evaluation.id)
                return

    def _iter_delay_waits(self) -> Iterator[WaitCondition]:
        """Yield a wait condition for each pending evaluation that is due at a later time."""
        for evaluation in self._facts.pending:
            if is_delayed(evaluation):
                time_text = f"at {format_time(evaluation.wait_until)}" if evaluation.wait_until is not None else "soon"
                what = DELAY_REASONS.get(evaluation.triggered_by, "it is evaluated again")
                if evaluation.triggered_by in RETRY_TRIGGERS and not self._is_failure_the_reason():
                    what = "allocations on disconnected nodes are replaced"
                yield WaitCondition(
                    waits_for=WaitReason.DELAY, text=f"waits: {what} {time_text}", eval_id=evaluation.id
                )

    def _is_failure_the_reason(self) -> bool:
        """Return whether failed allocations, not disconnected nodes, are the reason for delayed replacements.

        That is so if no node is disconnected, or if a failed allocation has no replacement yet.
        """
        disconnected = any(each.client_status is ClientStatus.UNKNOWN for each in self._facts.live)
        failed = (each for each in self._facts.allocations if each.client_status in FAILED_CLIENT_STATUSES)
        return not disconnected or any(not each.next_allocation for each in failed)

    def _iter_capacity_waits(self, groups: Sequence[GroupExplanation]) -> Iterator[WaitCondition]:
        """Yield a wait condition for each blocked evaluation: it waits for a slot of its parent, a quota or resources."""
        goal = " to place all allocations at once (AllAtOnce)" if self._facts.is_all_at_once else ""
        for evaluation in self._facts.blocked:
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
                is_unsuitable = bool(unplaced_groups) and not any(
                    each.exhausted or each.fitting or not each.excluded for each in unplaced_groups
                )
                need = "a suitable node" if is_unsuitable else "resources"
                text = f"waits for {need}{goal}: {describe_groups(unplaced_groups) or 'the last scheduling pass found no node'}"
            yield WaitCondition(
                waits_for=WaitReason.CAPACITY,
                text=text + self._describe_queue_position(evaluation),
                eval_id=evaluation.id,
            )

    def _describe_queue_position(self, evaluation: Evaluation) -> str:
        """Return the evaluation's position in the queue of blocked evaluations, and its reserved node if it has one.

        The position is left out if the evaluation is alone in the queue.
        """
        position, length = self._facts.blocked_queue_position
        text = ""
        if length > 1:
            since = format_time(to_datetime(evaluation.waiting_since_ns))
            text = f"; it is {position} of {length} in the queue, since {since}"
        if not evaluation.reserved_node_id:
            return text
        node = self._facts.snapshot.get(NODES, evaluation.reserved_node_id)
        name = node.name if node is not None else evaluation.reserved_node_id
        return f"{text}; node {name} is reserved for it, because it has waited long"

    def _describe_slot_wait(self, evaluation: Evaluation) -> str:
        """Return how many children of the parent job run, the limit, and what would let this child start."""
        parent_id = evaluation.waits_behind
        parent = self._facts.snapshot.get(JOBS, evaluation.namespace, parent_id)
        running = count_running_children(self._facts.snapshot, evaluation.namespace, parent_id)
        limit = 0 if parent is None else get_max_running(parent)
        position, length = self._facts.blocked_queue_position
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

    def _iter_deployment_waits(self) -> Iterator[WaitCondition]:
        """Yield what the newest deployment waits for, if it is one of the job's current version."""
        deployment = self._facts.deployments[-1] if self._facts.deployments else None
        if deployment is None or deployment.job_version != self._facts.job.version or self._facts.job.stop:
            return
        wait = describe_deployment(deployment)
        # An allocation that is not placed cannot be healthy: then the missing resources are the reason.
        if wait is not None and not (wait[0] is WaitReason.HEALTH and self._facts.blocked):
            remedy = self._suggest_command(wait[0], deployment)
            text = f"{wait[1]}; {remedy}" if remedy else wait[1]
            yield WaitCondition(waits_for=wait[0], text=text, deployment_id=deployment.id)

    def _suggest_command(self, reason: WaitReason, deployment: Deployment) -> str:
        """Return which command lets a job continue whose deployment waits for a user, or an empty text."""
        job = self._facts.job
        option = f" --namespace {job.namespace}" if job.namespace != DEFAULT_NAMESPACE else ""
        if reason is WaitReason.RESUMPTION:
            return f"resume it with `wharf deployment resume{option} {deployment.id[:8]}`"
        if reason is WaitReason.PROMOTION:
            return f"promote it with `wharf deployment promote{option} {deployment.id[:8]}`"
        if reason is not WaitReason.CHANGE:
            return ""
        # Only a new version has a new deployment, and scaling makes one even if the count stays.
        short = next((group for group in job.groups if self._facts.unplaced.get(group.name)), None)
        if short is not None:
            missing = format_allocation_count(sum(self._facts.unplaced.values()))
            command = f"wharf job scale{option} {job.id} {short.name} {short.count}"
            return f"{missing} missing: `{command}` starts a new deployment that places what is missing"
        return f"correct the job and submit it with `wharf job run{option} FILE`"

    def _iter_drain_waits(self) -> Iterator[WaitCondition]:
        """Yield a wait condition if the job has allocations on draining nodes."""
        on_draining_nodes = [
            each for each in self._facts.allocations if each.is_occupying and self._is_draining(each.node_id)
        ]
        if on_draining_nodes:
            text = f"has {format_allocation_count(len(on_draining_nodes))} on {self._join_node_names(on_draining_nodes)} (being drained)"
            yield WaitCondition(waits_for=WaitReason.DRAIN, text=text)

    def _is_draining(self, node_id: str) -> bool:
        """Return whether the node is being drained."""
        node = self._facts.snapshot.get(NODES, node_id)
        return node is not None and node.drain_strategy is not None

    def _iter_node_waits(self) -> Iterator[WaitCondition]:
        """Yield a wait condition if the job has allocations on nodes that are out of contact."""
        disconnected = [each for each in self._facts.live if not self._is_in_contact(each.node_id)]
        if disconnected:
            text = f"has {format_allocation_count(len(disconnected))} on {self._join_node_names(disconnected)} (out of contact)"
            yield WaitCondition(waits_for=WaitReason.NODE, text=text)

    def _is_in_contact(self, node_id: str) -> bool:
        """Return whether the node exists and has the status ready."""
        node = self._facts.snapshot.get(NODES, node_id)
        return node is not None and node.status is NodeStatus.READY

    def _join_node_names(self, allocations: Sequence[Allocation]) -> str:
        """Return the names of the first `MAX_NAMED_NODES` nodes of these allocations, and how many more there are."""
        names = sorted({each.node_name or each.node_id for each in allocations})
        more = len(names) - MAX_NAMED_NODES
        return ", ".join(names[:MAX_NAMED_NODES]) + (f" and {more} more nodes" if more > 0 else "")

    def _iter_task_waits(self) -> Iterator[WaitCondition]:
        """Yield wait conditions for allocations that are starting, restarting or stopping."""
        starting = [each for each in self._facts.live if each.client_status is ClientStatus.PENDING]
        restart_reasons = {
            each.name: failure_text for each in starting if (failure_text := describe_last_failure(each.task_states))
        }
        if restart_reasons:
            text = f"has {format_allocation_count(len(restart_reasons))} waiting to be restarted ({summarize_reasons(restart_reasons)})"
            yield WaitCondition(waits_for=WaitReason.TASKS, text=text)
        elif starting:
            text = f"has {format_allocation_count(len(starting))} placed but not started yet"
            yield WaitCondition(waits_for=WaitReason.TASKS, text=text)
        stopping = [each for each in self._facts.allocations if each.is_server_terminal and each.is_occupying]
        if stopping:
            text = f"has {format_allocation_count(len(stopping))} stopping, which their nodes have not ended yet"
            yield WaitCondition(waits_for=WaitReason.TASKS, text=text)

    def _explain_group(self, group: TaskGroup) -> GroupExplanation:
        """Return how many allocations of the group run, start and are missing.

        If an evaluation is blocked because of the group, also return why nodes cannot take an allocation, and what
        would help.
        """
        own = [each for each in self._facts.live if each.task_group == group.name]
        unplaced = self._facts.unplaced.get(group.name, 0)
        base = GroupExplanation(
            group=group.name,
            wanted=self._facts.count_desired(group),
            running=sum(each.client_status is ClientStatus.RUNNING for each in own),
            starting=sum(each.client_status is ClientStatus.PENDING for each in own),
            unplaced=unplaced,
        )
        waiting = next(
            (
                each
                for each in self._facts.blocked
                if group.name in (each.failed_tg_allocs or {}) and not each.waits_behind
            ),
            None,
        )
        if waiting is None:
            return base
        report = report_capacity(
            self._facts.get_cache(), self._facts.snapshot, self._facts.job, group, self._facts.allocations
        )
        return add_shortage(base, self._facts.job, group, report, quota_name=waiting.quota_limit_reached)


def list_unexplained_jobs(snapshot: Replica) -> list[str]:
    """Return a text for each job that lacks allocations for no known reason.

    When nothing is in progress in a cluster, the list must be empty. Used by checks of invariants.
    """
    caches: list[SchedulerCache] = []

    def get_cache() -> SchedulerCache:
        """Return the scheduler's cache of nodes, built at the first call."""
        if not caches:
            caches.append(SchedulerCache.from_snapshot(snapshot))
        return caches[0]

    explanations = (explain_job(snapshot, job.namespace, job.id, get_cache) for job in snapshot.iter_by_key(JOBS))
    return [f"{each.namespace}/{each.job_id}: {each.text}" for each in explanations if not each.is_explained]
