"""Scale a group of a job: set its count, record scaling events, and report the status of its groups.

Autoscalers use the same request as every other client.
"""

from collections import Counter
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, DecisionContext, WriteBuilder
from wharf.cluster.operations.jobs.registration import (
    JobWriteResult,
    check_modify_index,
    check_registration_enabled,
    make_job_evaluation,
)
from wharf.cluster.operations.jobs.versions import make_next_version, store_version
from wharf.cluster.operations.scaling import sync_policies
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import DEPLOYMENTS_OF_JOB, EVALUATIONS, JOBS, SCALING_EVENTS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.refusal import RefusalReason, invalid_request, not_found
from wharf.contract.model.scaling import (
    MAX_SCALING_EVENTS,
    GroupScaleStatus,
    JobScaleStatus,
    JobScalingEvents,
    ScalingEvent,
)

MAX_MESSAGE_BYTES: Final = 10_000
MAX_META_BYTES: Final = 10_000
"""Limits the size of the record that holds all scaling events of a job: 20 events for each group."""


class GroupScaling(msgspec.Struct, frozen=True, kw_only=True):
    """A request to set the count of a group, or, if `count` is `None`, to record a scaling event only."""

    namespace: str
    job_id: str
    group: str  # The name of the group.
    count: int | None = None  # The new count; `None`: only record an event.
    message: str = ""  # The reason, for the scaling event.
    is_error: bool = False  # The event reports a failure of the autoscaler.
    # Any JSON object of the autoscaler; it is only stored.
    meta: dict[str, Any] | None = None
    job_modify_index: int = 0  # If above 0, the job must have this modify index.
    accessor_id: str = ""  # The accessor id of the caller's ACL token.
    is_management: bool = True  # The caller may scale even while registration is disabled.
    cause: str = ""  # The origin of the request, for the log.


def scale_group(
    snapshot: Replica, request: GroupScaling, context: DecisionContext, settings: JobSettings
) -> Decision[JobWriteResult]:
    """Return the decision that stores a new version of the job with the new count of the group, and records the scaling
    event.

    Without a count, only the event is recorded. Raises if the request is invalid, or while a deployment of the job is
    active.
    """
    check_registration_enabled(snapshot, is_management=request.is_management)
    _check_request(request)
    job = snapshot.get(JOBS, request.namespace, request.job_id)
    if job is None:
        raise not_found(f'job "{request.job_id}" not found')
    group = job.find_group(request.group)
    if group is None:
        raise invalid_request(f'task group "{request.group}" specified for scaling does not exist in job')
    if request.count is None:
        return _build_event_decision(snapshot, job, group, request, context)
    _check_count(request.count, job, group, settings)
    deployments = snapshot.list_by_index(DEPLOYMENTS_OF_JOB, job.namespace, job.id)
    if any(each.is_active and each.job_create_index == job.create_index for each in deployments):
        raise invalid_request("job scaling blocked due to active deployment", RefusalReason.ACTIVE_DEPLOYMENT)
    if request.job_modify_index > 0:
        check_modify_index(request.job_modify_index, job)
    groups = [replace(each, count=request.count) if each.name == group.name else each for each in job.groups]
    scaled = replace(job, task_groups=tuple(groups), version_tag=None, submitter_accessor_id=request.accessor_id)
    scaled = make_next_version(scaled, job, context)
    builder = WriteBuilder(snapshot)
    builder.require_unchanged_parents(JOBS, scaled)
    store_version(builder, scaled, max_versions=settings.versions_kept)
    sync_policies(builder, scaled)
    evaluation = make_job_evaluation(scaled, context, EvaluationTrigger.JOB_SCALING)
    if evaluation is not None:
        builder.put(EVALUATIONS, evaluation)
    event = _make_event(request, group, context, eval_id=evaluation.id if evaluation else None)
    builder.put(SCALING_EVENTS, _prepend_event(snapshot, job, group, event))
    builder.require_unchanged_key(SCALING_EVENTS, job.namespace, job.id)
    return Decision(
        builder.build("job-scaled", Cause(CauseKind.REQUEST, request.cause)),
        lambda index: JobWriteResult(index, index, evaluation.id if evaluation else "", index if evaluation else 0),
    )


def _build_event_decision(
    snapshot: Replica, job: Job, group: TaskGroup, request: GroupScaling, context: DecisionContext
) -> Decision[JobWriteResult]:
    """Return the decision that records a scaling event without changing the job."""
    events = _prepend_event(snapshot, job, group, _make_event(request, group, context))
    conditions = [
        snapshot.build_record_condition(JOBS, job),
        snapshot.build_key_condition(SCALING_EVENTS, job.namespace, job.id),
    ]
    write = Write(
        "scaling-told", Cause(CauseKind.REQUEST, request.cause), [SCALING_EVENTS.build_put(events)], conditions
    )
    return Decision(write, lambda index: JobWriteResult(index, job.modify_index))


class ScaleCounts:
    """Counts the allocations of a job that have not ended, by group. Canaries are not counted."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._placed: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self._healthy: Counter[str] = Counter()
        self._unhealthy: Counter[str] = Counter()

    def add(self, allocation: Allocation) -> None:
        """Count an allocation with the id of the job."""
        status, group = allocation.deployment_status, allocation.task_group
        is_canary = status is not None and status.canary
        if allocation.is_terminal or is_canary or allocation.job_create_index != self._job.create_index:
            return
        self._placed[group] += 1
        if allocation.client_status is ClientStatus.RUNNING:
            self._running[group] += 1
        if status is not None and status.healthy is not None:
            (self._healthy if status.healthy else self._unhealthy)[group] += 1

    def build_status(self, events: JobScalingEvents | None) -> JobScaleStatus:
        """Return the desired, placed, running and healthy counts of every group of the job, and its scaling events."""
        job = self._job
        events_by_group = events.scaling_events if events is not None else {}
        return JobScaleStatus(
            job_id=job.id,
            namespace=job.namespace,
            job_create_index=job.create_index,
            job_modify_index=job.modify_index,
            job_stopped=job.stop,
            task_groups={
                group.name: GroupScaleStatus(
                    desired=group.count,
                    placed=self._placed[group.name],
                    running=self._running[group.name],
                    healthy=self._healthy[group.name],
                    unhealthy=self._unhealthy[group.name],
                    events=events_by_group.get(group.name),
                )
                for group in job.groups
            },
        )


def _check_request(request: GroupScaling) -> None:
    """Raise if the request has no group, a too long message or meta, a negative count, or a count together with an
    error.
    """
    if not request.group:
        raise invalid_request("missing task group name for scaling action")
    if len(request.message.encode()) > MAX_MESSAGE_BYTES:
        raise invalid_request(f"the message of a scaling action must be at most {MAX_MESSAGE_BYTES} bytes long")
    if request.meta and len(msgspec.json.encode(request.meta)) > MAX_META_BYTES:
        raise invalid_request(f"the meta of a scaling action must be at most {MAX_META_BYTES} bytes of JSON")
    if request.count is not None and request.count < 0:
        raise invalid_request("scaling action count can't be negative")
    if request.count is not None and request.is_error:
        raise invalid_request("scaling action should not contain count if error is true")


def _check_count(count: int, job: Job, group: TaskGroup, settings: JobSettings) -> None:
    """Raise if the group's scaling policy, the job's type or the configured maximum of a job does not allow the count."""
    if group.array is not None:
        raise invalid_request(
            f'group "{group.name}" has an Array, so it cannot be scaled: change its MaxRunning instead'
        )
    if job.type == JobType.SYSTEM and count > 1:
        raise invalid_request('jobs of type "system" can only be scaled between 0 and 1')
    policy = group.scaling
    if policy is not None and count < policy.min:
        raise invalid_request(f"group count was less than scaling policy minimum: {count} < {policy.min}")
    if policy is not None and count > policy.max:
        raise invalid_request(f"group count was greater than scaling policy maximum: {count} > {policy.max}")
    total = count + sum(each.count for each in job.groups if each.name != group.name)
    if 0 < settings.max_count < total:
        raise invalid_request(f"total count was greater than configured job_max_count: {total} > {settings.max_count}")


def _make_event(
    request: GroupScaling, group: TaskGroup, context: DecisionContext, *, eval_id: str | None = None
) -> ScalingEvent:
    """Return the scaling event that records the request. `eval_id` is the evaluation that it caused."""
    return ScalingEvent(
        time=context.now_ns,
        count=request.count,
        previous_count=group.count,
        message=request.message,
        error=request.is_error,
        meta=request.meta,
        eval_id=eval_id,
        create_index=WRITE_INDEX,
    )


def _prepend_event(snapshot: Replica, job: Job, group: TaskGroup, event: ScalingEvent) -> JobScalingEvents:
    """Return the scaling events of the job, with this event first in its group, and at most `MAX_SCALING_EVENTS` of
    each group.

    Events of groups that no longer exist are dropped.
    """
    stored = snapshot.get(SCALING_EVENTS, job.namespace, job.id)
    events = dict(stored.scaling_events) if stored is not None else {}
    events[group.name] = (event, *events.get(group.name, ()))[:MAX_SCALING_EVENTS]
    group_names = {each.name: None for each in job.groups}
    return JobScalingEvents(
        namespace=job.namespace,
        job_id=job.id,
        scaling_events={name: events[name] for name in events if name in group_names},
        create_index=stored.create_index if stored is not None else WRITE_INDEX,
    )
