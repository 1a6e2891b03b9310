"""Dry run of a job (plan): the difference to the stored job, and what the scheduler would do. Nothing is written.

The scheduler runs on a snapshot in which the job is stored already.
"""

import datetime

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import DecisionContext
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.operations.explanations.shortages import explain_plan
from wharf.cluster.operations.jobs.admission import admit_job
from wharf.cluster.operations.jobs.arrays import make_attempt
from wharf.cluster.operations.jobs.periodic import list_next_launches
from wharf.cluster.operations.jobs.registration import inherit_server_fields
from wharf.cluster.operations.jobs.submissions import find_hidden_fields, list_sensitive_versions
from wharf.cluster.operations.jobs.versions import has_same_specification, make_next_version
from wharf.cluster.operations.scaling import assign_policy_ids
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.scheduling.scheduler import plan_evaluation
from wharf.cluster.state import Replica
from wharf.cluster.state.overlay import OverlayReplica
from wharf.cluster.state.tables import ARRAY_ATTEMPTS, JOB_VERSIONS, JOBS
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.evaluations import Evaluation, EvaluationTrigger
from wharf.contract.model.explanations import GroupExplanation
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.diff import annotate_job_diff, compare_jobs
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.plan import JobDiff, PlanAnnotations
from wharf.contract.model.times import to_datetime


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a dry run: what a registration of the job would change."""

    job_modify_index: int
    """That of the stored job; 0: none is stored. A registration that enforces it fails if the job changed since."""
    warnings: str = ""  # Warnings of the validation.
    annotations: PlanAnnotations | None = None
    """How many allocations of each group would be placed, stopped and updated."""
    failed_groups: dict[str, AllocMetric] | None = None  # By group, why allocations could not be placed.
    explanations: dict[str, GroupExplanation] | None = None
    """By group, the reasons in `failed_groups` in words, with what would help."""
    created_evaluations: tuple[Evaluation, ...] | None = None  # Evaluations that the scheduler would create.
    diff: JobDiff | None = None  # The difference to the stored job, if requested.
    next_launches: tuple[datetime.datetime, ...] = ()  # The next launches of a periodic job.


def dry_run_job(
    snapshot: Replica,
    submitted: Job,
    context: DecisionContext,
    settings: JobSettings,
    *,
    should_include_diff: bool,
    parser_warnings: tuple[str, ...] = (),
    max_launches: int,
    sensitive_fields: tuple[str, ...] = (),
    cache: SchedulerCache | None = None,
) -> DryRun:
    """Return what a registration of the job would change, without writing anything.

    Raises the same errors as a registration.

    `sensitive_fields` are those of the submitted job: the difference shows no values of them, nor of those of stored versions.
    `cache` is the scheduler's view of the nodes at this snapshot; it is built if it is `None`.
    """
    stored = snapshot.get(JOBS, submitted.namespace, submitted.id)
    admitted = admit_job(snapshot, inherit_server_fields(submitted, stored), settings, parser_warnings=parser_warnings)
    job = assign_policy_ids(snapshot, admitted.job, context)
    diff = None
    if should_include_diff:
        sensitive = list_sensitive_versions(snapshot, job.namespace, job.id)
        if sensitive_fields:
            sensitive.append((sensitive_fields, job))
        diff = compare_jobs(stored, job, hidden=find_hidden_fields(sensitive))
    result = DryRun(
        job_modify_index=stored.job_modify_index if stored is not None else 0,
        warnings=admitted.warnings,
        next_launches=tuple(list_next_launches(job, to_datetime(context.now_ns), max_launches=max_launches)),
    )
    if job.is_periodic or job.is_parameterized:  # Only its children have allocations.
        return replace(result, diff=annotate_job_diff(diff, None) if diff is not None else None)
    cache = cache or SchedulerCache.from_snapshot(snapshot)
    plan = _plan_job(snapshot, job, stored, context, cache)
    assert plan.completed_evaluation is not None, "a plan that was not checked yet ends its evaluation"
    annotations = plan.completed_evaluation.plan_annotations
    failed_groups = plan.completed_evaluation.failed_tg_allocs
    return replace(
        result,
        annotations=annotations,
        failed_groups=failed_groups,
        explanations=explain_plan(cache, snapshot, plan, failed_groups) if failed_groups else None,
        created_evaluations=_list_created_evaluations(plan) or None,
        diff=annotate_job_diff(diff, annotations) if diff is not None else None,
    )


def _plan_job(snapshot: Replica, job: Job, stored: Job | None, context: DecisionContext, cache: SchedulerCache) -> Plan:
    """Return the plan that the scheduler would make if the job were registered over the job `stored`, if any."""
    next_index = snapshot.index + 1
    if stored is not None and has_same_specification(stored, job):
        job = stored
    else:
        job = make_next_version(job, stored, context)
        job = replace(
            job,
            create_index=stored.create_index if stored is not None else next_index,
            job_modify_index=next_index,
            modify_index=next_index,
        )
    changes = [JOBS.build_put(job), JOB_VERSIONS.build_put(job)]
    attempt = make_attempt(snapshot, job, stored) if job is not stored else None
    if attempt is not None:
        attempt = replace(attempt, create_index=next_index, modify_index=next_index)
        changes.append(ARRAY_ATTEMPTS.build_put(attempt))
    overlay = OverlayReplica(snapshot, changes)
    evaluation = replace(
        make_evaluation(job, context, EvaluationTrigger.JOB_REGISTER),
        annotate_plan=True,
        create_index=next_index,
        modify_index=next_index,
    )
    return plan_evaluation(cache, overlay, evaluation, context)


def _list_created_evaluations(plan: Plan) -> tuple[Evaluation, ...]:
    """Return the evaluations that the plan would create, without indexes because they are never stored."""
    created = [each for each in plan.follow_ups if each.create_index <= 0]
    return tuple(replace(each, create_index=0, modify_index=0) for each in created)
