"""Children of a job: launched by time, or dispatched by somebody. The leader's brain makes them, since it counts them.

When a launch is due is not known here; a child is made from its parent as the parent stands.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.model.canonical import canonicalize
from wharf.model.changes import THIS, Cause, CauseKind, Condition, Drop, Put, Write
from wharf.model.evaluation import Evaluation, EvaluationTrigger
from wharf.model.job import Job, Parameterized, PayloadRequirement
from wharf.model.job_settings import PRIORITY_CEILING, JobSettings
from wharf.model.moment import to_time
from wharf.model.periodic import PeriodicLaunch
from wharf.model.refusal import invalid, unknown
from wharf.operations.decision import Decision, Moment
from wharf.operations.derived import new_summary
from wharf.operations.jobs import evaluation_of, follow_launches, refuse_while_disabled
from wharf.operations.scaling_policies import follow_policies, with_policy_ids
from wharf.operations.versions import first_status
from wharf.state import Replica
from wharf.state.tables import (
    DISPATCHES_BY_TOKEN,
    EVALUATIONS,
    JOB_VERSIONS,
    JOBS,
    PERIODIC_LAUNCHES,
    SUMMARIES,
)

SECOND_NS: Final = 1_000_000_000
PAYLOAD_MAX_BYTES: Final = 16 * 1024
ID_PREFIX_MAX_BYTES: Final = 256
RANDOM_DIGITS: Final = 8


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody hands to a parameterized job. The same token again makes nothing new."""

    namespace: str
    job_id: str
    payload: bytes = b""
    meta: dict[str, str] = {}
    id_prefix: str = ""
    priority: int = 0
    idempotency_token: str = ""
    accessor_id: str = ""
    is_management: bool = True
    cause: str = ""


class ChildMade(msgspec.Struct, frozen=True):
    """`index`: of the write, or of the child that was there already."""

    index: int
    job_id: str
    job_create_index: int
    eval_id: str = ""
    eval_create_index: int = 0


def dispatch(snapshot: Replica, asked: Dispatch, moment: Moment, settings: JobSettings) -> Decision[ChildMade]:
    """A child of the parameterized job with this payload and meta."""
    refuse_while_disabled(snapshot, is_management=asked.is_management)
    parent = snapshot.get(JOBS, asked.namespace, asked.job_id)
    if parent is None:
        raise unknown("parameterized job not found")
    template = parent.parameterized_job
    if template is None or not parent.is_parameterized:
        raise invalid(f'Specified job "{parent.id}" is not a parameterized job')
    if parent.stop:
        raise invalid(f'Specified job "{parent.id}" is stopped')
    _check_payload(asked.payload, template)
    _check_meta(asked.meta, template)
    _check_priority(asked.priority, settings)
    _check_prefix(asked.id_prefix)
    already = _already_dispatched(snapshot, parent, asked.idempotency_token)
    if already is not None:
        return Decision(None, lambda _index: ChildMade(already.modify_index, already.id, already.create_index))
    prefix = f"{asked.id_prefix}-" if asked.id_prefix else ""
    digits = moment.new_id().replace("-", "")[:RANDOM_DIGITS]
    child = replace(
        _child_of(parent, f"{parent.id}/dispatch-{prefix}{moment.now_ns // SECOND_NS}-{digits}", moment, settings),
        dispatched=True,
        dispatch_idempotency_token=asked.idempotency_token,
        payload=asked.payload or None,
        meta={**(parent.meta or {}), **asked.meta} or None,
        priority=asked.priority or parent.priority,
        submitter_accessor_id=asked.accessor_id,
    )
    child = replace(child, status=first_status(child))
    return _made(
        snapshot, parent, child, EvaluationTrigger.JOB_REGISTER, moment, kind="job-dispatched", cause=asked.cause
    )


def force_periodic(
    snapshot: Replica, namespace: str, job_id: str, moment: Moment, settings: JobSettings, *, cause: str = ""
) -> Decision[ChildMade]:
    """Launch a child now, whatever still runs."""
    parent = snapshot.get(JOBS, namespace, job_id)
    if parent is None:
        raise unknown("job not found")
    if not parent.is_periodic:
        raise invalid("can't force launch non-periodic job")
    if not parent.is_active_periodic:
        why = "it is stopped; start it first" if parent.stop else "its Periodic block is not enabled"
        raise invalid(
            f'force launch for job "{job_id}" failed: can\'t force run non-tracked job "{job_id}" ({namespace}): {why}'
        )
    return launch(snapshot, parent, moment, settings, launch_s=moment.now_ns // SECOND_NS, cause=cause)


def launch(
    snapshot: Replica, parent: Job, moment: Moment, settings: JobSettings, *, launch_s: int, cause: str = ""
) -> Decision[ChildMade]:
    """The child of this launch. Where it is there already (two launches of one second), it is evaluated again."""
    child_id = f"{parent.id}/periodic-{launch_s}"
    stored = snapshot.get(JOBS, parent.namespace, child_id)
    if stored is not None:
        return _evaluated_again(snapshot, stored, moment, cause=cause)
    child = replace(_child_of(parent, child_id, moment, settings), periodic=None)
    child = replace(child, status=first_status(child))
    launched = snapshot.get(PERIODIC_LAUNCHES, parent.namespace, parent.id)
    record = PeriodicLaunch(
        namespace=parent.namespace,
        id=parent.id,
        launch=to_time(launch_s * SECOND_NS),
        create_index=THIS if launched is None else launched.create_index,
    )
    return _made(
        snapshot,
        parent,
        child,
        EvaluationTrigger.PERIODIC_JOB,
        moment,
        kind="periodic-job-launched",
        cause=cause,
        changes=[PERIODIC_LAUNCHES.put(record)],
        conditions=[snapshot.as_seen(PERIODIC_LAUNCHES, parent.namespace, parent.id)],
    )


def _child_of(parent: Job, child_id: str, moment: Moment, settings: JobSettings) -> Job:
    child = replace(
        parent,
        id=child_id,
        name=child_id,
        parent_id=parent.id,
        status_description="",
        version=0,
        version_tag=None,
        stable=False,
        submit_time=moment.now_ns,
        create_index=THIS,
        job_modify_index=THIS,
    )
    return canonicalize(child, settings)  # What names its job names the child now.


def _made(
    snapshot: Replica,
    parent: Job,
    child: Job,
    trigger: EvaluationTrigger,
    moment: Moment,
    *,
    kind: str,
    cause: str,
    changes: list[Put | Drop] | None = None,
    conditions: list[Condition] | None = None,
) -> Decision[ChildMade]:
    """Store the child, as its first version, with its summary and its evaluation. The parent must stand as it does."""
    child = with_policy_ids(snapshot, child, moment)
    changes = [*(changes or ()), JOBS.put(child), JOB_VERSIONS.put(child), SUMMARIES.put(new_summary(child))]
    conditions = [
        *(conditions or ()),
        snapshot.unchanged(JOBS, parent),
        snapshot.as_seen(JOBS, child.namespace, child.id),
        snapshot.as_seen(SUMMARIES, child.namespace, child.id),
    ]
    follow_policies(snapshot, child, changes, conditions)
    follow_launches(snapshot, child, moment, changes)
    evaluation = evaluation_of(child, moment, trigger)
    if evaluation is not None:
        changes.append(EVALUATIONS.put(evaluation))
    return Decision(
        Write(kind, Cause(CauseKind.REQUEST, cause), changes, conditions),
        lambda index: _told(index, child.id, index, evaluation),
    )


def _evaluated_again(snapshot: Replica, child: Job, moment: Moment, *, cause: str) -> Decision[ChildMade]:
    evaluation = evaluation_of(child, moment, EvaluationTrigger.PERIODIC_JOB)
    changes = [EVALUATIONS.put(evaluation)] if evaluation is not None else []
    write = Write("job-evaluated", Cause(CauseKind.REQUEST, cause), changes, [snapshot.unchanged(JOBS, child)])
    return Decision(write, lambda index: _told(index, child.id, child.create_index, evaluation))


def _told(index: int, child_id: str, create_index: int, evaluation: Evaluation | None) -> ChildMade:
    if evaluation is None:
        return ChildMade(index, child_id, create_index)
    return ChildMade(index, child_id, create_index, evaluation.id, index)


def _already_dispatched(snapshot: Replica, parent: Job, token: str) -> Job | None:
    if not token:
        return None
    return next(iter(snapshot.those_by_key(DISPATCHES_BY_TOKEN, parent.namespace, parent.id, token)), None)


def _check_payload(payload: bytes, template: Parameterized) -> None:
    if len(payload) > PAYLOAD_MAX_BYTES:
        raise invalid(f"Payload exceeds maximum size; {len(payload)} > {PAYLOAD_MAX_BYTES}")
    if not payload and template.payload == PayloadRequirement.REQUIRED:
        raise invalid("Payload is not provided but required by parameterized job")
    if payload and template.payload == PayloadRequirement.FORBIDDEN:
        raise invalid("Payload provided but forbidden by parameterized job")


def _check_meta(meta: Mapping[str, str], template: Parameterized) -> None:
    required, optional = template.meta_required or (), template.meta_optional or ()
    unpermitted = sorted(key for key in meta if key not in required and key not in optional)
    if unpermitted:
        raise invalid(f"Dispatch request included unpermitted metadata keys: [{' '.join(unpermitted)}]")
    missing = sorted(key for key in required if key not in meta)
    if missing:
        raise invalid(f"Dispatch did not provide required meta keys: [{' '.join(missing)}]")


def _check_priority(priority: int, settings: JobSettings) -> None:
    most = min(settings.max_priority, PRIORITY_CEILING)
    if priority and not 1 <= priority <= most:
        raise invalid(f"dispatch job priority must be between [1, {most}]")


def _check_prefix(prefix: str) -> None:
    """It becomes part of an id."""
    if " " in prefix or "\x00" in prefix:
        raise invalid("IdPrefixTemplate contains a space or a null character, which no ID of a job may hold")
    if len(prefix.encode()) > ID_PREFIX_MAX_BYTES:
        raise invalid(f"IdPrefixTemplate must be at most {ID_PREFIX_MAX_BYTES} bytes long")
