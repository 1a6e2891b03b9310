"""What a job would change if it were registered now: its text, and what the scheduler would do. Nothing is stored.

The scheduler is asked on a snapshot in which the job stands as it would; what it cannot tell is left out.
"""

import datetime

import msgspec
from msgspec.structs import replace

from wharf.model.diff import diff
from wharf.model.diff_annotation import annotate
from wharf.model.evaluation import Evaluation, EvaluationTrigger
from wharf.model.job import Job
from wharf.model.job_settings import JobSettings
from wharf.model.metric import AllocMetric
from wharf.model.moment import to_time
from wharf.model.plan import JobDiff, PlanAnnotations
from wharf.operations.admission import admit
from wharf.operations.decision import Moment
from wharf.operations.evaluations import new_evaluation
from wharf.operations.jobs import of_same_family
from wharf.operations.launches import next_launches
from wharf.operations.scaling_policies import with_policy_ids
from wharf.operations.versions import new_version, say_the_same
from wharf.scheduling.ground import Ground
from wharf.scheduling.plan import Plan
from wharf.scheduling.schedule import schedule
from wharf.state import Replica
from wharf.state.imagined import Imagined
from wharf.state.tables import JOB_VERSIONS, JOBS


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """`job_modify_index` is the stored job's: whoever registers with it knows that nobody was faster."""

    job_modify_index: int
    warnings: str = ""
    annotations: PlanAnnotations | None = None
    failed_groups: dict[str, AllocMetric] | None = None
    created_evaluations: tuple[Evaluation, ...] | None = None
    diff: JobDiff | None = None
    next_launches: tuple[datetime.datetime, ...] = ()


def dry_run(
    snapshot: Replica,
    submitted: Job,
    moment: Moment,
    settings: JobSettings,
    *,
    with_diff: bool,
    warnings_of_reading: tuple[str, ...] = (),
    launches: int = 1,
    ground: Ground | None = None,
) -> DryRun:
    """Refused with the same words as a registration. `ground`: the fleet as the snapshot has it, where somebody keeps it."""
    stored = snapshot.get(JOBS, submitted.namespace, submitted.id)
    admitted = admit(snapshot, of_same_family(submitted, stored), settings, warnings_of_reading=warnings_of_reading)
    job = with_policy_ids(snapshot, admitted.job, moment)
    told = diff(stored, job) if with_diff else None
    result = DryRun(
        job_modify_index=stored.job_modify_index if stored is not None else 0,
        warnings=admitted.warnings,
        next_launches=tuple(next_launches(job, to_time(moment.now_ns), at_most=launches)),
    )
    if job.is_periodic or job.is_parameterized:  # It places nothing itself.
        return replace(result, diff=annotate(told, None) if told is not None else None)
    plan = _planned(snapshot, job, stored, moment, ground or Ground.of(snapshot))
    assert plan.finished is not None, "a plan that was not checked yet ends its evaluation"
    annotations = plan.finished.plan_annotations
    return replace(
        result,
        annotations=annotations,
        failed_groups=plan.finished.failed_tg_allocs,
        created_evaluations=_created(plan) or None,
        diff=annotate(told, annotations) if told is not None else None,
    )


def _planned(snapshot: Replica, job: Job, stored: Job | None, moment: Moment, ground: Ground) -> Plan:
    """What the scheduler would do, were this job stored."""
    next_index = snapshot.index + 1
    if stored is not None and say_the_same(stored, job):
        job = stored
    else:
        job = new_version(job, stored, moment)
        job = replace(
            job,
            create_index=stored.create_index if stored is not None else next_index,
            job_modify_index=next_index,
            modify_index=next_index,
        )
    imagined = Imagined(snapshot, [JOBS.put(job), JOB_VERSIONS.put(job)])
    evaluation = replace(
        new_evaluation(job, moment, EvaluationTrigger.JOB_REGISTER),
        annotate_plan=True,
        create_index=next_index,
        modify_index=next_index,
    )
    return schedule(ground, imagined, evaluation, moment)


def _created(plan: Plan) -> tuple[Evaluation, ...]:
    """The evaluations that would follow. They have no index, since they are not."""
    known = [each for each in plan.follow_ups if each.create_index <= 0]
    return tuple(replace(each, create_index=0, modify_index=0) for each in known)
