"""Periodic jobs: compute their next launch times, and create the child of a launch."""

import datetime
from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, DecisionContext, WriteBuilder
from wharf.cluster.operations.jobs.children import (
    ChildJobResult,
    make_child_job,
    make_child_result,
    store_child_job,
)
from wharf.cluster.operations.jobs.registration import make_job_evaluation
from wharf.cluster.operations.jobs.run_queue import admit_run
from wharf.cluster.operations.jobs.versions import get_initial_status
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import EVALUATIONS, JOBS, PERIODIC_LAUNCHES
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.cron import CronError, load_zone
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import Job, Periodic
from wharf.contract.model.jobs.periodic import LaunchTimes, PeriodicLaunch
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind
from wharf.contract.model.refusal import invalid_request, not_found
from wharf.contract.model.times import SECOND, to_datetime

DEFAULT_TIME_ZONE: Final = "UTC"


def list_next_launches(job: Job, after: datetime.datetime, *, max_launches: int) -> list[datetime.datetime]:
    """Return the next launch times of a periodic job after `after`, up to `max_launches`, in the job's time zone.

    Empty if the job launches nothing: it is stopped, disabled or not periodic.
    """
    periodic = job.periodic
    if periodic is None or not job.is_active_periodic:
        return []
    return list(islice(iterate_launches(periodic, after), max_launches))


def iterate_launches(periodic: Periodic, after: datetime.datetime) -> Iterator[datetime.datetime]:
    """Yield the launch times of the cron expressions of the job after `after`, in order.

    An invalid expression ends the iteration.
    """
    try:
        zone = load_zone(periodic.time_zone or DEFAULT_TIME_ZONE)
        times = LaunchTimes(periodic, after)
        while (found := times.find_next(after)) is not None:
            after = found
            yield found.astimezone(zone)
    except CronError:
        return  # An invalid cron expression launches nothing; validation reports the error when the job is registered.


def force_periodic_launch(
    snapshot: Replica, namespace: str, job_id: str, context: DecisionContext, settings: JobSettings, *, cause: str = ""
) -> Decision[ChildJobResult]:
    """Return the decision that launches a child of the periodic job now, even if others still run.

    Raises if the job does not exist or is not an active periodic job, or if it is a flow with `Overlap` skip and a run has not
    ended.
    """
    parent = snapshot.get(JOBS, namespace, job_id)
    if parent is None:
        raise not_found("job not found")
    if not parent.is_periodic:
        raise invalid_request("can't force launch non-periodic job")
    if not parent.is_active_periodic:
        reason = "it is stopped; start it first" if parent.stop else "its Periodic block is not enabled"
        raise invalid_request(
            f'force launch for job "{job_id}" failed: can\'t force run non-tracked job "{job_id}" ({namespace}): {reason}'
        )
    return launch_periodic_job(snapshot, parent, context, settings, launch_time_s=context.now_ns // SECOND, cause=cause)


def make_launch_id(parent: Job, launch_time_s: int) -> str:
    """Return the ID of the child of a launch. It depends on nothing else, so each launch has one child."""
    return f"{parent.id}/periodic-{launch_time_s}"


def launch_periodic_job(
    snapshot: Replica,
    parent: Job,
    context: DecisionContext,
    settings: JobSettings,
    *,
    launch_time_s: int,
    cause: str = "",
    is_backfill: bool = False,
) -> Decision[ChildJobResult]:
    """Return the decision that creates the child of the launch at `launch_time_s` (Unix seconds) and records the
    launch.

    If the child exists already, because of two launches in one second or a backfill, the decision evaluates it again. A
    backfill does not change the record of the last launch, from which a new leader continues, and it does nothing to earlier
    runs. Raises if `Flow.Overlap` does not allow another run.
    """
    child_id = make_launch_id(parent, launch_time_s)
    builder = WriteBuilder(snapshot)
    if not is_backfill:
        # Also for an existing child: a new leader would otherwise make up for the launch.
        _record_launch(builder, parent, launch_time_s)
    stored = snapshot.get(JOBS, parent.namespace, child_id)
    if stored is not None:
        return _reevaluate_child(builder, stored, context, cause=cause)
    child = replace(make_child_job(parent, child_id, context, settings), periodic=None)
    child = replace(child, status=get_initial_status(child))
    if not is_backfill:
        admit_run(builder, parent, child.id, context)
    return store_child_job(
        builder,
        parent,
        child,
        EvaluationTrigger.PERIODIC_JOB,
        context,
        write_kind="periodic-job-launched",
        cause=cause,
    )


def skip_launch(snapshot: Replica, parent: Job, launch_time_s: int) -> Decision[ChildJobResult | None]:
    """Return the decision that records the launch at `launch_time_s` (Unix seconds) without a child, because an earlier child
    has not ended.
    """
    builder = WriteBuilder(snapshot)
    builder.require_unchanged_record(JOBS, parent)
    _record_launch(builder, parent, launch_time_s)
    return Decision(builder.build("periodic-launch-skipped", Cause(CauseKind.TIMER, "periodic")), lambda _index: None)


def _record_launch(builder: WriteBuilder, parent: Job, launch_time_s: int) -> None:
    """Add to the write the time of the last launch of a job, from which a new leader continues."""
    stored = builder.snapshot.get(PERIODIC_LAUNCHES, parent.namespace, parent.id)
    record = PeriodicLaunch(
        namespace=parent.namespace,
        id=parent.id,
        launch=to_datetime(launch_time_s * SECOND),
        create_index=WRITE_INDEX if stored is None else stored.create_index,
    )
    builder.put(PERIODIC_LAUNCHES, record)
    builder.require_unchanged_key(PERIODIC_LAUNCHES, parent.namespace, parent.id)


def _reevaluate_child(
    builder: WriteBuilder, child: Job, context: DecisionContext, *, cause: str
) -> Decision[ChildJobResult]:
    """Return the decision that evaluates an existing child job again. `builder` may already contain changes for the same write."""
    evaluation = make_job_evaluation(child, context, EvaluationTrigger.PERIODIC_JOB)
    if evaluation is not None:
        builder.put(EVALUATIONS, evaluation)
    builder.require_unchanged_record(JOBS, child)
    return Decision(
        builder.build("job-evaluated", Cause(CauseKind.REQUEST, cause)),
        lambda index: make_child_result(index, child.id, child.create_index, evaluation),
    )
