"""Explain a job: what it waits for, its position in the queue, and what would help.

The explanation depends on the state only, so every server returns the same one. `scheduling.explanation` examines
the nodes.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from wharf.cluster.operations.explanations.arrays import iter_array_waits
from wharf.cluster.operations.explanations.idle_jobs import FAILED_CLIENT_STATUSES, describe_idle_state
from wharf.cluster.operations.explanations.job_facts import JobFacts, SchedulerCacheFactory, get_creation_order
from wharf.cluster.operations.explanations.locks import describe_lock_wait
from wharf.cluster.operations.explanations.past_shortages import describe_past_shortages
from wharf.cluster.operations.explanations.runs import RunExplainer
from wharf.cluster.operations.explanations.shortages import add_shortage
from wharf.cluster.operations.explanations.text import (
    describe_deployment,
    describe_groups,
    describe_namespace_option,
    describe_quota_shortage,
    format_allocation_count,
    format_time,
    is_delayed,
    make_placement_explanation,
    summarize_reasons,
)
from wharf.cluster.operations.jobs.overlap import add_run_ahead, find_run_ahead, list_unfinished, waits_in_queue
from wharf.cluster.operations.jobs.versions import list_versions
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.capacity.child_limits import count_running_children, get_max_running
from wharf.cluster.scheduling.explanation.capacity_report import report_capacity
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    JOBS,
    NODES,
    SCHEDULER_CONFIGURATION,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.failure_reasons import describe_task_failure, summarize_failures
from wharf.contract.model.allocations.placement_reasons import NEVER_TEXT
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.evaluations import ELEMENT_TRIGGERS, Evaluation, EvaluationTrigger
from wharf.contract.model.explanations import (
    FailureExplanation,
    GroupExplanation,
    JobExplanation,
    WaitCondition,
    WaitReason,
)
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.refusal import not_found
from wharf.contract.model.times import to_datetime

MAX_PLACEMENTS: Final = 50
"""Number of live allocations explained, newest first. Older ones were placed by the same rules."""

MAX_NAMED_NODES: Final = 3
"""Number of nodes that a text names."""

MAX_CHAIN_JOBS: Final = 3
"""Number of jobs, each of which waits for the next one, that an explanation follows. Limits its time and its text."""

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


REASON_NAMES: Final = {
    WaitReason.NOTHING: "nothing",
    WaitReason.PAUSED_SCHEDULER: "the scheduler, which is paused",
    WaitReason.QUEUE: "its evaluation",
    WaitReason.DELAY: "the end of a delay",
    WaitReason.CAPACITY: "resources",
    WaitReason.QUOTA: "capacity in a quota",
    WaitReason.SCHEDULING_SLOT: "a slot of its parent",
    WaitReason.LOCK: "a lock",
    WaitReason.HEALTH: "healthy allocations",
    WaitReason.PROMOTION: "a promotion",
    WaitReason.RESUMPTION: "the resumption of its deployment",
    WaitReason.DRAIN: "the drain of a node",
    WaitReason.NODE: "a node that is out of contact",
    WaitReason.ARRAY: "the limit of an array",
    WaitReason.STEP: "the end of a step",
    WaitReason.GATE: "an approval",
    WaitReason.TASKS: "tasks that start or stop",
    WaitReason.LAUNCH: "its next launch",
    WaitReason.DISPATCH: "a dispatch",
    WaitReason.CHANGE: "a change of the job",
    WaitReason.UNKNOWN: "an unknown reason",
}
"""What a summary calls the reasons that it does not describe. Explanations and pages list each of them in full."""

FAILURE_REASONS: Final = (WaitReason.HEALTH, WaitReason.DELAY)
"""What jobs wait for because allocations failed: the summary then names the failure."""
RESTART_TEXT: Final = "waiting to be restarted"
"""What a job says about allocations whose tasks failed and start again."""
NOT_STARTED_TEXT: Final = "placed but not started yet"
"""What a job says about allocations that have no running task yet."""


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

    def __init__(self, facts: JobFacts, chain_length: int = MAX_CHAIN_JOBS) -> None:
        """`chain_length`: how many jobs the explanation follows, each of which waits for the next one."""
        self._facts = facts
        self._chain_length = chain_length
        self._failures = tuple(self._iter_failures())

    def explain(self) -> JobExplanation:
        """Return the explanation of the job."""
        groups = self._explain_groups()
        run = self._make_run_explainer(groups)
        waits = tuple(self._list_wait_conditions(groups, run))
        position, length = (
            self._facts.get_queue_position() if not self._facts.blocked else self._facts.blocked_queue_position
        )
        return JobExplanation(
            job_id=self._facts.job.id,
            namespace=self._facts.job.namespace,
            status=self._facts.job.status.value,
            text=self._make_text(waits) + (run.describe_limit() if run is not None else ""),
            waits=waits,
            queue_place=position,
            queue_length=length,
            groups=groups,
            steps=run.list_steps() if run is not None else (),
            placements=tuple(map(make_placement_explanation, self._facts.list_newest_live(MAX_PLACEMENTS))),
            failures=self._failures,
        )

    def describe_first_wait(self) -> str:
        """Return what the job waits for most, as the end of a sentence that begins with its name."""
        groups = self._explain_groups()
        return self._list_wait_conditions(groups, self._make_run_explainer(groups))[0].text

    def _explain_groups(self) -> tuple[GroupExplanation, ...]:
        """Return the explanations of the groups. Only the children of a periodic or parameterized job have allocations."""
        job = self._facts.job
        is_parent = job.is_periodic or job.is_parameterized
        return () if is_parent else tuple(self._explain_group(group) for group in job.groups)

    def _iter_failures(self) -> Iterator[FailureExplanation]:
        """Yield why allocations of the job's current version failed, for each reason once."""
        job = self._facts.job
        current = [
            each
            for each in self._facts.allocations
            if each.job_version == job.version and each.job_create_index == job.create_index
        ]
        for failure in summarize_failures(current, is_per_node=job.runs_on_every_node):
            yield FailureExplanation(
                alloc_id=failure.newest.id,
                name=failure.newest.name,
                text=failure.reason,
                count=failure.alloc_count,
                task=failure.ended_task,
            )

    def _make_text(self, waits: Sequence[WaitCondition]) -> str:
        """Return the summary: the most urgent wait condition, failures of tasks, and the names of the other reasons."""
        first, *others = waits
        text = f"{self._facts.job.id} {first.text}"
        restart = next(
            (each for each in others if each.waits_for is WaitReason.TASKS and RESTART_TEXT in each.text), None
        )
        if restart is not None:  # It is usually why the first condition is not met.
            text += f", and {restart.text}"
        elif first.waits_for in FAILURE_REASONS and (cause := self._describe_cause()):
            text += f"; failed: {cause}"
        if first.waits_for is WaitReason.ARRAY:  # While an array runs, some of its elements start.
            others = [each for each in others if NOT_STARTED_TEXT not in each.text]
        names = dict.fromkeys(REASON_NAMES[each.waits_for] for each in others if each is not restart)
        return text + (f" ({self._facts.job.id} also waits for {' and for '.join(names)})" if names else "")

    def _make_run_explainer(self, groups: Sequence[GroupExplanation]) -> RunExplainer | None:
        """Return the explainer of the steps of the job; `None` if it has none."""
        if self._facts.run is None:
            return None
        by_name = {each.group: each for each in groups}
        job = self._facts.job
        run_ahead = ""
        if waits_in_queue(job, self._facts.run):
            run_ahead = find_run_ahead(list_unfinished(self._facts.snapshot, job.namespace, job.parent_id), job)
        job = add_run_ahead(job, run_ahead)
        return RunExplainer(
            job,
            self._facts.run,
            lambda name: self._describe_ready_step(name, by_name[name]),
            lambda: self._describe_other_jobs(job),
        )

    def _describe_other_jobs(self, job: Job) -> str:
        """Return for which other jobs a run waits, and what the first of them waits for; empty if it needs none.

        The text is the end of a sentence that begins with the name of a step. Jobs that have ended are not named, unless
        all have: then the leader is about to decide.
        """
        needed = list(dict.fromkeys(need.on for need in job.depends or ()))
        records = {name: self._facts.snapshot.get(JOBS, job.namespace, name) for name in needed}
        unfinished = [each for each in records.values() if each is not None and each.status is not JobStatus.DEAD]
        names = [each.id for each in unfinished] or needed
        text = f"waits for the end of {', '.join(names)}" if names else ""
        if not unfinished or self._chain_length <= 1:
            return text
        facts = self._facts
        other = JobFacts(facts.snapshot, unfinished[0], facts.get_cache, facts.now_ns)
        wait = JobExplainer(other, self._chain_length - 1).describe_first_wait()
        return f"{text}, which {wait}" if len(names) == 1 else f"{text}; {names[0]} {wait}"

    def _describe_ready_step(self, name: str, group: GroupExplanation) -> str:
        """Return what a step does that may begin, as the end of a sentence that begins with its name."""
        for evaluation in self._facts.blocked:
            if text := self._describe_lock_wait(evaluation, name):
                return text
            if name in (evaluation.failed_tg_allocs or {}):
                return self._describe_capacity_wait(evaluation, [group]).text
        if group.running:
            return "runs"
        if group.starting:
            return "starts"
        if self._facts.pending:
            is_retry = all(each.triggered_by in RETRY_TRIGGERS for each in self._facts.pending)
            return "waits for its retry" if is_retry else "waits for its evaluation"
        return "is ready"

    def _list_wait_conditions(
        self, groups: Sequence[GroupExplanation], run: RunExplainer | None
    ) -> list[WaitCondition]:
        """Return what the job waits for, most urgent first.

        If it waits for nothing, the only entry describes its state.
        """
        found = [
            *self._iter_pause_waits(),
            *self._iter_queue_waits(),
            *(run.iter_waits() if run is not None and not self._facts.job.stop else ()),
            *self._iter_capacity_waits(groups),
            *(iter_array_waits(self._facts.arrays) if not self._facts.job.stop else ()),
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
        is_array_at_limit = any(each.is_at_limit for each in self._facts.arrays)
        for evaluation in self._facts.pending:
            if evaluation.triggered_by in ELEMENT_TRIGGERS and is_array_at_limit:
                continue  # A busy array always has one. The limit is the reason why others wait.
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
            if is_delayed(evaluation) and evaluation.triggered_by not in ELEMENT_TRIGGERS:
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
        """Yield wait conditions for each blocked evaluation.

        It waits for a slot of its parent, a quota or resources, and each of its steps may wait for a lock.
        """
        job = self._facts.job
        for evaluation in self._facts.blocked:
            for group in job.groups:
                if text := self._describe_lock_wait(evaluation, group.name):
                    text = f"waits: {group.name} {text}"
                    yield WaitCondition(waits_for=WaitReason.LOCK, text=text, eval_id=evaluation.id)
            if not evaluation.waits_only_for_locks:
                others = [each for each in groups if not evaluation.find_lock_wait(each.group)]
                yield self._describe_capacity_wait(evaluation, others)

    def _describe_lock_wait(self, evaluation: Evaluation, step: str) -> str:
        """Return which lock a step waits for, as the end of a sentence that begins with its name; empty if it does not."""
        wait, job = evaluation.find_lock_wait(step), self._facts.job
        return "" if wait is None else describe_lock_wait(self._facts.snapshot, job.namespace, job.id, wait)

    def _describe_capacity_wait(self, evaluation: Evaluation, groups: Sequence[GroupExplanation]) -> WaitCondition:
        """Return what a blocked evaluation waits for. Only groups in `groups` are named."""
        if evaluation.waits_behind:
            return WaitCondition(
                waits_for=WaitReason.SCHEDULING_SLOT,
                text=self._describe_slot_wait(evaluation),
                eval_id=evaluation.id,
            )
        if evaluation.quota_limit_reached:
            quota, shortage = evaluation.quota_limit_reached, describe_quota_shortage(evaluation)
            text, advice = f'waits for capacity in the quota "{quota}": {shortage}', ""
            if NEVER_TEXT in shortage:
                advice = f"request less, or raise the quota {quota}"
                text = f'cannot run with the quota "{quota}": {shortage}; {advice}'
            return WaitCondition(
                waits_for=WaitReason.QUOTA, text=text, eval_id=evaluation.id, advice=(advice,) if advice else ()
            )
        unplaced_groups = [each for each in groups if each.group in (evaluation.failed_tg_allocs or {}) and each.text]
        if evaluation.triggered_by is EvaluationTrigger.MAX_PLAN_ATTEMPTS and not unplaced_groups:
            text = "had too many conflicts with other changes during placement, and is retried within a minute"
        else:
            goal = " to place all allocations at once (AllAtOnce)" if self._facts.is_all_at_once else ""
            is_unsuitable = bool(unplaced_groups) and not any(
                each.exhausted or each.fitting or not each.excluded for each in unplaced_groups
            )
            need = "a suitable node" if is_unsuitable else "resources"
            text = f"waits for {need}{goal}: {describe_groups(unplaced_groups) or 'the last scheduling pass found no node'}"
        return WaitCondition(
            waits_for=WaitReason.CAPACITY,
            text=text + self._describe_queue_position(evaluation),
            eval_id=evaluation.id,
            advice=tuple(each.smallest_change for each in unplaced_groups if each.smallest_change),
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
            reason, text = wait
            remedy = self._suggest_command(reason, deployment)
            if reason is WaitReason.CHANGE and (cause := self._describe_cause() or self._describe_shortage(deployment)):
                text = f"{text}: {cause}"
            yield WaitCondition(
                waits_for=reason,
                text=f"{text}; {remedy}" if remedy else text,
                deployment_id=deployment.id,
                advice=(remedy,) if remedy else (),
            )

    def _describe_cause(self) -> str:
        """Return which allocation of the current version failed, and why; empty if none did. Of several, the newest."""
        if not self._failures:
            return ""
        newest = self._failures[0]
        more = sum(each.count for each in self._failures) - 1
        return f"{newest.name}, {newest.text}" + (f"; and {more} more failed" if more else "")

    def _find_short_evaluation(self, deployment: Deployment) -> Evaluation | None:
        """Return the newest evaluation that could not place all allocations of a deployment before it failed.

        Returns `None` if there is none, or if no allocation is missing now.
        """
        if not any(self._facts.unplaced.values()):
            return None
        short = (
            each
            for each in reversed(self._facts.evaluations)
            if each.deployment_id == deployment.id
            and each.failed_tg_allocs
            and each.create_index < deployment.modify_index
        )
        return next(short, None)

    def _describe_shortage(self, deployment: Deployment) -> str:
        """Return why allocations of a deployment were not placed; empty if that was not the reason of its failure."""
        evaluation = self._find_short_evaluation(deployment)
        return "" if evaluation is None else describe_past_shortages(evaluation)

    def _suggest_command(self, reason: WaitReason, deployment: Deployment) -> str:
        """Return which command lets a job continue whose deployment waits for a user, or an empty text."""
        job = self._facts.job
        option = describe_namespace_option(job.namespace)
        if reason is WaitReason.RESUMPTION:
            return f"resume it with `wharf deployment resume{option} {deployment.id[:8]}`"
        if reason is WaitReason.PROMOTION:
            return f"promote it with `wharf deployment promote{option} {deployment.id[:8]}`"
        if reason is not WaitReason.CHANGE:
            return ""
        if self._failures:
            return self._suggest_other_version(option)
        # Only a new version has a new deployment, and scaling makes one even if the count stays.
        short = next((group for group in job.groups if self._facts.unplaced.get(group.name)), None)
        if short is not None:
            missing = format_allocation_count(sum(self._facts.unplaced.values()))
            command = f"wharf job scale{option} {job.id} {short.name} {short.count}"
            evaluation = self._find_short_evaluation(deployment)
            if evaluation is None:
                return f"{missing} missing: `{command}` starts a new deployment that places what is missing"
            quota = evaluation.quota_limit_reached
            what = f'raise the quota "{quota}", or free a part of it' if quota else "free resources, or add a node"
            return f"{missing} missing: {what}, and start a new deployment with `{command}`"
        return f"correct the job and submit it with `wharf job run{option} FILE`"

    def _suggest_other_version(self, option: str) -> str:
        """Return how to replace a version whose allocations failed. The same version again would fail again."""
        job = self._facts.job
        text = f"correct the job and submit it with `wharf job run{option} FILE`"
        earlier = (
            each for each in list_versions(self._facts.snapshot, job.namespace, job.id) if each.version < job.version
        )
        stable = next((each for each in earlier if each.stable), None)
        if stable is None:
            return text
        return (
            f"return to version {stable.version} with `wharf job revert{option} {job.id} {stable.version}`, or {text}"
        )

    def _iter_drain_waits(self) -> Iterator[WaitCondition]:
        """Yield a wait condition if the job has allocations on draining nodes."""
        draining = self._facts.find_nodes(
            self._facts.allocations, lambda node: node is not None and node.drain_strategy is not None
        )
        if draining:
            on_draining_nodes = [
                each for each in self._facts.allocations if each.node_id in draining and each.is_occupying
            ]
        if draining and on_draining_nodes:
            text = f"has {format_allocation_count(len(on_draining_nodes))} on {self._join_node_names(on_draining_nodes)} (being drained)"
            yield WaitCondition(waits_for=WaitReason.DRAIN, text=text)

    def _iter_node_waits(self) -> Iterator[WaitCondition]:
        """Yield a wait condition if the job has allocations on nodes that are out of contact."""
        lost_contact = self._facts.find_nodes(
            self._facts.live, lambda node: node is None or node.status is not NodeStatus.READY
        )
        if lost_contact:
            disconnected = [each for each in self._facts.live if each.node_id in lost_contact]
            text = f"has {format_allocation_count(len(disconnected))} on {self._join_node_names(disconnected)} (out of contact)"
            yield WaitCondition(waits_for=WaitReason.NODE, text=text)

    def _join_node_names(self, allocations: Sequence[Allocation]) -> str:
        """Return the names of the first `MAX_NAMED_NODES` nodes of these allocations, and how many more there are."""
        names = sorted({each.node_name or each.node_id for each in allocations})
        more = len(names) - MAX_NAMED_NODES
        return ", ".join(names[:MAX_NAMED_NODES]) + (f" and {more} more nodes" if more > 0 else "")

    def _iter_task_waits(self) -> Iterator[WaitCondition]:
        """Yield wait conditions for allocations that are starting, restarting or stopping."""
        starting = [each for each in self._facts.live if each.client_status is ClientStatus.PENDING]
        restarting = (
            (each, text)
            for each in starting
            if each.task_states is not None and (text := describe_task_failure(each.task_states))
        )
        restart_reasons = {
            each.name: text for each, text in sorted(restarting, key=lambda entry: get_creation_order(entry[0]))
        }
        if restart_reasons:
            text = f"has {format_allocation_count(len(restart_reasons))} {RESTART_TEXT} ({summarize_reasons(restart_reasons)})"
            yield WaitCondition(waits_for=WaitReason.TASKS, text=text)
        elif starting:
            text = f"has {format_allocation_count(len(starting))} {NOT_STARTED_TEXT}"
            yield WaitCondition(waits_for=WaitReason.TASKS, text=text)
        stopping = sum(
            each.desired_status is not DesiredStatus.RUN and each.is_occupying for each in self._facts.allocations
        )
        if stopping:
            text = f"has {format_allocation_count(stopping)} stopping, which their nodes have not ended yet"
            yield WaitCondition(waits_for=WaitReason.TASKS, text=text)

    def _explain_group(self, group: TaskGroup) -> GroupExplanation:
        """Return how many allocations of the group run, start and are missing.

        If an evaluation is blocked because of the group, also return why nodes cannot take an allocation, and what
        would help.
        """
        counts = self._facts.live_counts
        unplaced = self._facts.unplaced.get(group.name, 0)
        base = GroupExplanation(
            group=group.name,
            wanted=self._facts.count_desired(group),
            running=counts[group.name, ClientStatus.RUNNING],
            starting=counts[group.name, ClientStatus.PENDING],
            complete=self._facts.count_complete(group),
            canaries=self._facts.count_running_canaries(group),
            unplaced=unplaced,
            is_array=group.array is not None,
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
        if text := self._describe_lock_wait(waiting, group.name):
            return replace(base, text=f"{group.name} {text}")
        report = report_capacity(
            self._facts.get_cache(), self._facts.snapshot, self._facts.job, group, self._facts.sorted_allocations
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
