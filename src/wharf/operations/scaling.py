"""Scaling a group of a job: its count and the events that tell of it, and how each group stands.

What an autoscaler thinks of counts is not known here; it asks like everybody else.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from wharf.model.allocation import Allocation, ClientStatus
from wharf.model.changes import THIS, Cause, CauseKind, Condition, Drop, Put, Write
from wharf.model.evaluation import EvaluationTrigger
from wharf.model.group import TaskGroup
from wharf.model.job import Job, JobType
from wharf.model.job_settings import JobSettings
from wharf.model.refusal import invalid, unknown
from wharf.model.scale_status import GroupScale, JobScale
from wharf.model.scaling_event import MAX_EVENTS_KEPT, JobScalingEvents, ScalingEvent
from wharf.operations.decision import Decision, Moment
from wharf.operations.jobs import Registered, enforce_index, evaluation_of, refuse_while_disabled
from wharf.operations.scaling_policies import follow_policies
from wharf.operations.versions import new_version, store_version
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS_OF_JOB, DEPLOYMENTS_OF_JOB, EVALUATIONS, JOBS, SCALING_EVENTS

MESSAGE_MAX_BYTES: Final = 10_000
META_MAX_BYTES: Final = 10_000
"""Twenty events of every group lie in one record."""


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """A new count of a group, or only a message about it (`count` None)."""

    namespace: str
    job_id: str
    group: str
    count: int | None = None
    message: str = ""
    is_error: bool = False
    # Opaque to us: whatever the autoscaler says.
    meta: dict[str, Any] | None = None
    job_modify_index: int = 0
    accessor_id: str = ""
    is_management: bool = True
    cause: str = ""


def scale(snapshot: Replica, asked: Scaling, moment: Moment, settings: JobSettings) -> Decision[Registered]:
    """Give the group its new count, as a new version of the job, and note who wanted it."""
    refuse_while_disabled(snapshot, is_management=asked.is_management)
    _check_request(asked)
    job = snapshot.get(JOBS, asked.namespace, asked.job_id)
    if job is None:
        raise unknown(f'job "{asked.job_id}" not found')
    group = job.group(asked.group)
    if group is None:
        raise invalid(f'task group "{asked.group}" specified for scaling does not exist in job')
    if asked.count is None:
        return _only_told(snapshot, job, group, asked, moment)
    _check_count(asked.count, job, group, settings)
    deployments = snapshot.those(DEPLOYMENTS_OF_JOB, job.namespace, job.id)
    if any(each.is_active and each.job_create_index == job.create_index for each in deployments):
        raise invalid("job scaling blocked due to active deployment")
    if asked.job_modify_index > 0:
        enforce_index(asked.job_modify_index, job)
    groups = [replace(each, count=asked.count) if each.name == group.name else each for each in job.groups]
    scaled = replace(job, task_groups=tuple(groups), version_tag=None, submitter_accessor_id=asked.accessor_id)
    scaled = new_version(scaled, job, moment)
    changes: list[Put | Drop] = []
    conditions: list[Condition] = []
    store_version(snapshot, scaled, changes, conditions, kept=settings.versions_kept)
    follow_policies(snapshot, scaled, changes, conditions)
    evaluation = evaluation_of(scaled, moment, EvaluationTrigger.JOB_SCALING)
    if evaluation is not None:
        changes.append(EVALUATIONS.put(evaluation))
    event = _event(asked, group, moment, eval_id=evaluation.id if evaluation else None)
    changes.append(SCALING_EVENTS.put(_events_with(snapshot, job, group, event)))
    conditions.append(snapshot.as_seen(SCALING_EVENTS, job.namespace, job.id))
    return Decision(
        Write("job-scaled", Cause(CauseKind.REQUEST, asked.cause), changes, conditions),
        lambda index: Registered(index, index, evaluation.id if evaluation else "", index if evaluation else 0),
    )


def _only_told(snapshot: Replica, job: Job, group: TaskGroup, asked: Scaling, moment: Moment) -> Decision[Registered]:
    """A message without a count changes nothing of the job."""
    events = _events_with(snapshot, job, group, _event(asked, group, moment))
    conditions = [snapshot.unchanged(JOBS, job), snapshot.as_seen(SCALING_EVENTS, job.namespace, job.id)]
    write = Write("scaling-told", Cause(CauseKind.REQUEST, asked.cause), [SCALING_EVENTS.put(events)], conditions)
    return Decision(write, lambda index: Registered(index, job.modify_index))


def scale_of(snapshot: Replica, job: Job) -> JobScale:
    """How every group of the job stands."""
    events = snapshot.get(SCALING_EVENTS, job.namespace, job.id)
    told = events.scaling_events if events is not None else {}
    live: dict[str, list[Allocation]] = {}
    for allocation in snapshot.those(ALLOCATIONS_OF_JOB, job.namespace, job.id):
        is_canary = allocation.deployment_status is not None and allocation.deployment_status.canary
        if not allocation.is_terminal and not is_canary and allocation.job_create_index == job.create_index:
            live.setdefault(allocation.task_group, []).append(allocation)
    return JobScale(
        job_id=job.id,
        namespace=job.namespace,
        job_create_index=job.create_index,
        job_modify_index=job.modify_index,
        job_stopped=job.stop,
        task_groups={
            group.name: _scale_of(group, live.get(group.name, ()), told.get(group.name)) for group in job.groups
        },
    )


def _scale_of(group: TaskGroup, live: Iterable[Allocation], events: tuple[ScalingEvent, ...] | None) -> GroupScale:
    live = list(live)
    health = [each.deployment_status.healthy for each in live if each.deployment_status is not None]
    return GroupScale(
        desired=group.count,
        placed=len(live),
        running=sum(each.client_status is ClientStatus.RUNNING for each in live),
        healthy=sum(healthy is True for healthy in health),
        unhealthy=sum(healthy is False for healthy in health),
        events=events,
    )


def _check_request(asked: Scaling) -> None:
    if not asked.group:
        raise invalid("missing task group name for scaling action")
    if len(asked.message.encode()) > MESSAGE_MAX_BYTES:
        raise invalid(f"the message of a scaling action must be at most {MESSAGE_MAX_BYTES} bytes long")
    if asked.meta and len(msgspec.json.encode(asked.meta)) > META_MAX_BYTES:
        raise invalid(f"the meta of a scaling action must be at most {META_MAX_BYTES} bytes of JSON")
    if asked.count is not None and asked.count < 0:
        raise invalid("scaling action count can't be negative")
    if asked.count is not None and asked.is_error:
        raise invalid("scaling action should not contain count if error is true")


def _check_count(count: int, job: Job, group: TaskGroup, settings: JobSettings) -> None:
    if job.type == JobType.SYSTEM and count > 1:
        raise invalid('jobs of type "system" can only be scaled between 0 and 1')
    bounds = group.scaling
    if bounds is not None and count < bounds.min:
        raise invalid(f"group count was less than scaling policy minimum: {count} < {bounds.min}")
    if bounds is not None and count > bounds.max:
        raise invalid(f"group count was greater than scaling policy maximum: {count} > {bounds.max}")
    total = count + sum(each.count for each in job.groups if each.name != group.name)
    if 0 < settings.max_count < total:
        raise invalid(f"total count was greater than configured job_max_count: {total} > {settings.max_count}")


def _event(asked: Scaling, group: TaskGroup, moment: Moment, *, eval_id: str | None = None) -> ScalingEvent:
    return ScalingEvent(
        time=moment.now_ns,
        count=asked.count,
        previous_count=group.count,
        message=asked.message,
        error=asked.is_error,
        meta=asked.meta,
        eval_id=eval_id,
        create_index=THIS,
    )


def _events_with(snapshot: Replica, job: Job, group: TaskGroup, event: ScalingEvent) -> JobScalingEvents:
    """The job's events with this one in front. Those of groups that are gone go too."""
    stored = snapshot.get(SCALING_EVENTS, job.namespace, job.id)
    events = dict(stored.scaling_events) if stored is not None else {}
    events[group.name] = (event, *events.get(group.name, ()))[:MAX_EVENTS_KEPT]
    return JobScalingEvents(
        namespace=job.namespace,
        job_id=job.id,
        scaling_events={name: events[name] for name in events if job.group(name) is not None},
        create_index=stored.create_index if stored is not None else THIS,
    )
