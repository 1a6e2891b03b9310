"""Why a job's work is where it is, or nowhere: what is waited for, where in the queue, and what would help.

Told from the state alone, so every server tells the same. What the nodes have to say is found out by `scheduling.explain`.
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
from wharf.cluster.scheduling.explanation.capacity_report import EVERY_NODE_TYPES, is_served_by, report_capacity
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
"""The newest of those that are not over. The others were placed by the same rules."""

MAX_NAMED_NODES: Final = 3

DELAY_REASONS: Final = {
    EvaluationTrigger.ALLOC_FAILURE: "what failed is tried again",
    EvaluationTrigger.ALLOC_RESCHEDULE: "what failed is tried again",
    EvaluationTrigger.MAX_DISCONNECT_TIMEOUT: "what runs on nodes out of contact is given up",
    EvaluationTrigger.FAILED_FOLLOW_UP: "its evaluation, which failed before, is tried again",
    EvaluationTrigger.ROLLING_UPDATE: "the next part of its update is rolled out",
}

RETRY_TRIGGERS: Final = (EvaluationTrigger.ALLOC_FAILURE, EvaluationTrigger.ALLOC_RESCHEDULE)
FAILED_CLIENT_STATUSES: Final = (ClientStatus.FAILED, ClientStatus.LOST)

SchedulerCacheFactory = Callable[[], SchedulerCache]


def explain_job(
    snapshot: Replica, namespace: str, job_id: str, get_cache: SchedulerCacheFactory | None = None
) -> JobExplanation:
    """Everything that can be told of the job now. The fleet is asked for only where something finds no room."""
    job = snapshot.get(JOBS, namespace, job_id)
    if job is None:
        raise not_found("job not found")
    return JobExplainer(snapshot, job, get_cache or (lambda: SchedulerCache.from_snapshot(snapshot))).tell()


class JobExplainer:
    def __init__(self, snapshot: Replica, job: Job, ground_of: SchedulerCacheFactory) -> None:
        self._snapshot = snapshot
        self._job = job
        self._ground_of = ground_of
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
        self._unplaced = self._missing_by_group()

    def tell(self) -> JobExplanation:
        is_parent = self._job.is_periodic or self._job.is_parameterized  # Its children have what its groups say.
        groups = () if is_parent else tuple(self._group(group) for group in self._job.groups)
        waits = tuple(self._waits(groups))
        place, length = self._queue() if not self._blocked else self._line
        return JobExplanation(
            job_id=self._job.id,
            namespace=self._job.namespace,
            status=self._job.status.value,
            text=self._sentence(waits),
            waits=waits,
            queue_place=place,
            queue_length=length,
            groups=groups,
            placements=tuple(make_placement_explanation(each) for each in reversed(self._live[-MAX_PLACEMENTS:])),
        )

    def _sentence(self, waits: Sequence[WaitCondition]) -> str:
        """The first thing that is waited for is the most urgent one; the others are counted."""
        first = waits[0].text
        more = len(waits) - 1
        return f"{self._job.id} {first}" + (f" (and {more} more)" if more else "")

    # -- what is waited for ----------------------------------------------------------------------------------------

    def _waits(self, groups: Sequence[GroupExplanation]) -> list[WaitCondition]:
        """The most urgent first, never none."""
        found = [
            *self._paused(),
            *self._queued(),
            *self._unroomed(groups),
            *self._rolling_out(),
            *self._delayed(),
            *self._leaving(),
            *self._out_of_contact(),
            *self._starting(),
        ]
        return found or [self._at_rest()]

    def _paused(self) -> Iterator[WaitCondition]:
        configuration = self._snapshot.get(SCHEDULER_CONFIGURATION)
        if configuration is not None and configuration.pause_eval_broker and self._pending:
            text = "waits until the scheduler, which an operator has paused, goes on"
            yield WaitCondition(waits_for=WaitReason.PAUSED_SCHEDULER, text=text)

    def _queued(self) -> Iterator[WaitCondition]:
        for evaluation in self._pending:
            if not is_delayed(evaluation):
                place, length = self._queue()
                text = f"is about to be looked at ({evaluation.triggered_by.value}): {place} of {length} in the queue"
                yield WaitCondition(waits_for=WaitReason.QUEUE, text=text, eval_id=evaluation.id)
                return

    def _delayed(self) -> Iterator[WaitCondition]:
        for evaluation in self._pending:
            if is_delayed(evaluation):
                when = f"at {format_time(evaluation.wait_until)}" if evaluation.wait_until is not None else "in a while"
                what = DELAY_REASONS.get(evaluation.triggered_by, "it is looked at again")
                if evaluation.triggered_by in RETRY_TRIGGERS and not self._has_failed():
                    what = "others stand in for what is out of contact"
                yield WaitCondition(waits_for=WaitReason.DELAY, text=f"waits: {what} {when}", eval_id=evaluation.id)

    def _has_failed(self) -> bool:
        """Whether something failed and nothing has taken its place; else it is for another reason that work is replaced."""
        away = any(each.client_status is ClientStatus.UNKNOWN for each in self._live)
        failed = (each for each in self._allocations if each.client_status in FAILED_CLIENT_STATUSES)
        return not away or any(not each.next_allocation for each in failed)

    def _unroomed(self, groups: Sequence[GroupExplanation]) -> Iterator[WaitCondition]:
        at_once = " for all of it at once (AllAtOnce)" if self._is_all_at_once else ""
        for evaluation in self._blocked:
            if evaluation.waits_behind:
                yield WaitCondition(
                    waits_for=WaitReason.SCHEDULING_SLOT, text=self._turn(evaluation), eval_id=evaluation.id
                )
                continue
            if evaluation.quota_limit_reached:
                text = f'waits for room in the quota "{evaluation.quota_limit_reached}": {describe_quota_shortage(evaluation)}'
                yield WaitCondition(waits_for=WaitReason.QUOTA, text=text, eval_id=evaluation.id)
                continue
            lacking = [each for each in groups if each.group in (evaluation.failed_tg_allocs or {}) and each.text]
            if evaluation.triggered_by is EvaluationTrigger.MAX_PLAN_ATTEMPTS and not lacking:
                text = (
                    "met too many changes of others while it was placed, and is tried again in a minute at the latest"
                )
            else:
                text = f"waits for room{at_once}: {describe_groups(lacking) or 'none was found when it was tried last'}"
            yield WaitCondition(
                waits_for=WaitReason.CAPACITY, text=text + self._standing(evaluation), eval_id=evaluation.id
            )

    def _standing(self, evaluation: Evaluation) -> str:
        """Where in the line it is, unless it is alone, and what is kept for it."""
        place, length = self._line
        said = ""
        if length > 1:
            since = format_time(to_datetime(evaluation.waiting_since_ns))
            said = f"; it is {place} of {length} in the line, since {since}"
        if not evaluation.reserved_node_id:
            return said
        node = self._snapshot.get(NODES, evaluation.reserved_node_id)
        name = node.name if node is not None else evaluation.reserved_node_id
        return f"{said}; what comes free on {name} is kept for it, because it has waited long"

    def _turn(self, evaluation: Evaluation) -> str:
        behind = evaluation.waits_behind
        parent = self._snapshot.get(JOBS, evaluation.namespace, behind)
        running = count_running_children(self._snapshot, evaluation.namespace, behind)
        limit = 0 if parent is None else get_max_running(parent)
        place, length = self._line
        needed = running + place
        helps = (
            f"raise max_running of {behind} to {needed} to have it begin now"
            if needed > limit
            else "it begins when it is looked at next"
        )
        return (
            f"waits for its turn: {running} of the children of {behind} run, of {limit} that may at a time; it is {place} "
            f"of {length} in the line; {helps}"
        )

    @functools.cached_property
    def _line(self) -> tuple[int, int]:
        """The place of the job among those that wait for the same: for room, or for a turn behind one parent."""
        mine = self._blocked[0]
        blocked = self._snapshot.list_by_index(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED)
        key = mine.namespace, mine.waits_behind
        if mine.waits_behind:
            behind = [each for each in blocked if (each.namespace, each.waits_behind) == key]
            line = sorted(behind, key=lambda each: (each.waiting_since_ns, each.create_index, each.id))
        else:
            waiting = [each for each in blocked if not each.waits_behind]
            line = RetryOrder(self._snapshot, self._ground_of()).sort_evaluations(waiting)
        return next(place for place, each in enumerate(line, start=1) if each.id == mine.id), len(line)

    def _rolling_out(self) -> Iterator[WaitCondition]:
        deployment = self._deployments[-1] if self._deployments else None
        if deployment is None or deployment.job_version != self._job.version or self._job.stop:
            return
        told = describe_deployment(deployment)
        if told is not None and not (
            told[0] is WaitReason.HEALTH and self._blocked
        ):  # What is not placed is not healthy.
            yield WaitCondition(waits_for=told[0], text=told[1], deployment_id=deployment.id)

    def _leaving(self) -> Iterator[WaitCondition]:
        leaving = [each for each in self._allocations if each.is_occupying and self._is_drained(each.node_id)]
        if leaving:
            text = f"has {format_allocation_count(len(leaving))} on {self._nodes_of(leaving)} (being drained)"
            yield WaitCondition(waits_for=WaitReason.DRAIN, text=text)

    def _is_drained(self, node_id: str) -> bool:
        node = self._snapshot.get(NODES, node_id)
        return node is not None and node.drain_strategy is not None

    def _out_of_contact(self) -> Iterator[WaitCondition]:
        away = [each for each in self._live if not self._is_in_contact(each.node_id)]
        if away:
            text = f"has {format_allocation_count(len(away))} on {self._nodes_of(away)} (out of contact)"
            yield WaitCondition(waits_for=WaitReason.NODE, text=text)

    def _is_in_contact(self, node_id: str) -> bool:
        node = self._snapshot.get(NODES, node_id)
        return node is not None and node.status is NodeStatus.READY

    def _nodes_of(self, allocations: Sequence[Allocation]) -> str:
        names = sorted({each.node_name or each.node_id for each in allocations})
        more = len(names) - MAX_NAMED_NODES
        return ", ".join(names[:MAX_NAMED_NODES]) + (f" and {more} more nodes" if more > 0 else "")

    def _starting(self) -> Iterator[WaitCondition]:
        starting = [each for each in self._live if each.client_status is ClientStatus.PENDING]
        again = {each.name: why for each in starting if (why := describe_last_failure(each.task_states))}
        if again:
            text = f"has {format_allocation_count(len(again))} that ended and are to be started again ({summarize_reasons(again)})"
            yield WaitCondition(waits_for=WaitReason.TASKS, text=text)
        elif starting:
            text = f"has {format_allocation_count(len(starting))} placed and not started yet"
            yield WaitCondition(waits_for=WaitReason.TASKS, text=text)
        ending = [each for each in self._allocations if each.is_server_terminal and each.is_occupying]
        if ending:
            text = (
                f"has {format_allocation_count(len(ending))} that are to stop and that their nodes have not ended yet"
            )
            yield WaitCondition(waits_for=WaitReason.TASKS, text=text)

    def _at_rest(self) -> WaitCondition:
        """Nothing is under way. Then it is as it is wanted, or nothing will change until somebody changes something."""
        job = self._job
        if job.stop:
            children = self._of_children()
            what = f"starts nothing more{children}" if children else "nothing of it runs"
            return WaitCondition(waits_for=WaitReason.NOTHING, text=f"is stopped, and {what}")
        if job.is_parameterized:
            return WaitCondition(waits_for=WaitReason.DISPATCH, text=f"waits to be dispatched{self._of_children()}")
        if job.is_periodic:
            return self._next_launch()
        failed = self._evaluations[-1] if self._evaluations else None
        if failed is not None and failed.status is EvaluationStatus.FAILED:
            text = f"is left as it is, because its last evaluation failed: {failed.status_description}"
            return WaitCondition(waits_for=WaitReason.CHANGE, text=text, eval_id=failed.id)
        missing = sum(self._unplaced.values())
        if not missing:
            return WaitCondition(waits_for=WaitReason.NOTHING, text=self._as_wanted())
        given_up = [each for each in self._allocations if each.client_status in FAILED_CLIENT_STATUSES]
        reasons = {each.name: why for each in given_up if (why := describe_last_failure(each.task_states))}
        because = f" ({summarize_reasons(reasons)})" if reasons else ""
        if job.status is JobStatus.DEAD:
            text = f"is over: what failed is not tried again by its policies{because}"
            return WaitCondition(waits_for=WaitReason.CHANGE, text=text)
        if given_up:
            text = (
                f"has given up {format_allocation_count(missing)} that failed as often as its policies allow{because}"
            )
            return WaitCondition(waits_for=WaitReason.CHANGE, text=text)
        if not any(group.count for group in job.groups):
            return WaitCondition(waits_for=WaitReason.NOTHING, text="asks for no allocation")
        return WaitCondition(
            waits_for=WaitReason.UNKNOWN,
            text=f"lacks {format_allocation_count(missing)} and nothing is under way: have it evaluated, and report this",
        )

    def _next_launch(self) -> WaitCondition:
        job = self._job
        launched = self._snapshot.get(PERIODIC_LAUNCHES, job.namespace, job.id)
        if not job.is_active_periodic:
            return WaitCondition(waits_for=WaitReason.CHANGE, text="is periodic and not enabled")
        found = list_next_launches(job, launched.launch, max_launches=1) if launched is not None else []
        if not found:
            text = f"is launched by hand only, because its time table has no time left{self._of_children()}"
            return WaitCondition(waits_for=WaitReason.CHANGE, text=text)
        return WaitCondition(
            waits_for=WaitReason.LAUNCH, text=f"is launched next at {format_time(found[0])}{self._of_children()}"
        )

    def _of_children(self) -> str:
        """How many of them are not over."""
        summary = self._snapshot.get(JOB_SUMMARIES, self._job.namespace, self._job.id)
        children = summary.children if summary is not None else None
        if children is None or not children.running + children.pending:
            return ""
        counts = ((children.running, "run"), (children.pending, "wait"))
        told = [f"{count} {verb}{'s' if count == 1 else ''}" for count, verb in counts if count]
        return f"; of its children {' and '.join(told)}"

    def _as_wanted(self) -> str:
        if self._live:
            return f"runs as wanted: {format_allocation_count(len(self._live))}"
        complete = [each for each in self._allocations if each.client_status is ClientStatus.COMPLETE]
        # By the policies of batch work such a one counts as done: a drain that reached its deadline stopped it, or a person.
        stopped = [each for each in complete if each.is_server_terminal and not each.next_allocation]
        ended = len(complete) - len(stopped)
        if stopped and self._job.type in (JobType.BATCH, JobType.SYSBATCH):
            before = f"{format_allocation_count(ended)} ended well, and " if ended else ""
            said = f"{before}{format_allocation_count(len(stopped))} {'was' if len(stopped) == 1 else 'were'} stopped before the end"
            return f"is over: {said} ({summarize_reasons({each.name: each.desired_description or 'told to stop' for each in stopped})})"
        if complete:
            return f"is done: {format_allocation_count(len(complete))} ended well"
        return "asks for nothing that could run now"

    # -- groups and the queue --------------------------------------------------------------------------------------

    @property
    def _is_all_at_once(self) -> bool:
        return self._job.all_at_once and self._job.type not in EVERY_NODE_TYPES

    def _missing_by_group(self) -> dict[str, int]:
        """How many each group lacks. Of work for every node only the nodes can tell, and they are asked where it waits."""
        job = self._job
        if job.stop or job.is_periodic or job.is_parameterized:
            return {}
        missing = {}
        for group in job.groups:
            if job.type in EVERY_NODE_TYPES:
                continue
            there = sum(each.task_group == group.name and self._counts(each) for each in self._allocations)
            missing[group.name] = max(0, group.count - there)
        return missing

    def _counts(self, allocation: Allocation) -> bool:
        """Whether it stands for one of those that are wanted: it goes on, or it has done what was wanted."""
        if allocation.job_create_index != self._job.create_index:
            return False
        is_done = self._job.type == JobType.BATCH and allocation.client_status is ClientStatus.COMPLETE
        return not allocation.is_terminal or is_done

    def _wanted(self, group: TaskGroup) -> int:
        """Of work for every node: as many as there are or have ended, beside those that wait."""
        if self._job.stop:
            return 0
        if self._job.type not in EVERY_NODE_TYPES:
            return group.count
        own = (each for each in self._allocations if each.task_group == group.name and is_served_by(self._job, each))
        return len({each.node_id for each in own})

    def _group(self, group: TaskGroup) -> GroupExplanation:
        mine = [each for each in self._live if each.task_group == group.name]
        unplaced = self._unplaced.get(group.name, 0)
        told = GroupExplanation(
            group=group.name,
            wanted=self._wanted(group),
            running=sum(each.client_status is ClientStatus.RUNNING for each in mine),
            starting=sum(each.client_status is ClientStatus.PENDING for each in mine),
            unplaced=unplaced,
        )
        waiting = next(
            (each for each in self._blocked if group.name in (each.failed_tg_allocs or {}) and not each.waits_behind),
            None,
        )
        if waiting is None:
            return told
        room = report_capacity(self._ground_of(), self._snapshot, self._job, group, self._allocations)
        wanted = told.wanted
        if self._job.type in EVERY_NODE_TYPES:
            unplaced = room.unserved_nodes or int(
                not wanted
            )  # Where no node can have one, one is missing all the same.
            wanted += unplaced
        return GroupExplanation(
            group=told.group,
            wanted=wanted,
            running=told.running,
            starting=told.starting,
            unplaced=unplaced,
            text=describe_shortage(
                group,
                max(1, unplaced),
                room,
                quota_name=waiting.quota_limit_reached,
                is_all_or_nothing=self._is_all_at_once,
            ),
            nodes=room.nodes,
            fitting=room.fitting,
            excluded=room.excluded,
            exhausted=room.exhausted,
            smallest_change=room.smallest_change,
        )

    def _queue(self) -> tuple[int, int]:
        """The place of the first of the job's evaluations that is to be processed, and how many are; 0: none of it is."""
        mine = {each.id for each in self._pending if not is_delayed(each)}
        if not mine:
            return 0, 0
        pending = self._snapshot.list_by_index(EVALUATIONS_BY_STATUS, EvaluationStatus.PENDING)
        queue = sorted((-each.priority, each.create_index, each.id) for each in pending if not is_delayed(each))
        return next(place for place, each in enumerate(queue, start=1) if each[2] in mine), len(queue)


def list_unexplained_jobs(snapshot: Replica) -> list[str]:
    """Jobs that are pending, or lack something, and nobody can tell why. There must never be one, when all is at rest."""
    ground: list[SchedulerCache] = []

    def ground_once() -> SchedulerCache:
        if not ground:
            ground.append(SchedulerCache.from_snapshot(snapshot))
        return ground[0]

    told = (explain_job(snapshot, job.namespace, job.id, ground_once) for job in snapshot.iter_by_key(JOBS))
    return [f"{each.namespace}/{each.job_id}: {each.text}" for each in told if not each.is_explained]
