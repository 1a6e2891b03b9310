"""Reads of one job and of what belongs to it."""

from typing import Any, Final

from wharf.api.answers import Missing, Reading, by_creation, one
from wharf.api.endpoints.allocations import allocation_stub
from wharf.api.endpoints.jobs.stubs import job_stub
from wharf.api.listing import Listing, by_namespace
from wharf.api.request import ReadOptions, Request
from wharf.model.changes import SEPARATOR
from wharf.model.deployment import Deployment
from wharf.model.job import Job
from wharf.model.refusal import invalid
from wharf.operations.scaling import scale_of
from wharf.server.reading import Found
from wharf.state import Index, Replica, Table
from wharf.state import watches as watch
from wharf.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    DEPLOYMENTS,
    DEPLOYMENTS_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOBS,
    REGISTRATIONS_OF_JOB,
    SCALING_EVENTS,
    SERVICES,
    SUBMISSIONS,
    SUMMARIES,
)
from wharf.wire.job_bodies import JobAction

NOT_FOUND: Final = "job not found"


def job_list(replica: Replica, request: Request, options: ReadOptions) -> Listing[Job]:
    with_meta = request.flag("meta")
    summaries = replica.rows(SUMMARIES).records
    return by_namespace(
        replica,
        JOBS,
        options,
        SUMMARIES,
        shown=lambda job: job_stub(replica, job, with_meta=with_meta),
        form="job.list with meta" if with_meta else "job.list",
        rests_on=lambda job: summaries.get(job.namespace + SEPARATOR + job.id),
        rests_in=SUMMARIES,
    )


def job_read(replica: Replica, request: Request, options: ReadOptions) -> Found:
    return Found(*one(replica, JOBS, *_key(request, options), missing=NOT_FOUND))


def job_summary(replica: Replica, request: Request, options: ReadOptions) -> Found:
    return Found(*one(replica, SUMMARIES, *_key(request, options), missing=NOT_FOUND))


def job_allocations(replica: Replica, request: Request, options: ReadOptions) -> Found:
    """Of the job's present life, or of all its lives."""
    found = _of_this_life(replica, request, options, ALLOCATIONS_OF_JOB, everything=request.flag("all"))
    stubs = [allocation_stub(replica, allocation) for allocation in found]
    return _belonging(replica, ALLOCATIONS, ALLOCATIONS_OF_JOB, stubs, _key(request, options))


def job_evaluations(replica: Replica, request: Request, options: ReadOptions) -> Found:
    key = _key(request, options)
    found = by_creation(replica.those(EVALUATIONS_OF_JOB, *key))
    return _belonging(replica, EVALUATIONS, EVALUATIONS_OF_JOB, found, key)


def job_deployments(replica: Replica, request: Request, options: ReadOptions) -> Found:
    found = _of_this_life(replica, request, options, DEPLOYMENTS_OF_JOB, everything=request.flag("all"))
    return _belonging(replica, DEPLOYMENTS, DEPLOYMENTS_OF_JOB, found, _key(request, options))


def job_deployment(replica: Replica, request: Request, options: ReadOptions) -> Found:
    """The newest, or nothing."""
    found: list[Deployment] = _of_this_life(replica, request, options, DEPLOYMENTS_OF_JOB, everything=False)
    newest = found[-1] if found else None
    index = newest.modify_index if newest is not None else replica.last_change(DEPLOYMENTS)
    return Found(newest, index, [watch.those(DEPLOYMENTS_OF_JOB, *_key(request, options))])


def job_services(replica: Replica, request: Request, options: ReadOptions) -> Found:
    key = _key(request, options)
    if replica.get(JOBS, *key) is None:
        return Found(Missing(NOT_FOUND), replica.last_change(JOBS), [watch.one(JOBS, *key)])
    found = replica.those_by_key(REGISTRATIONS_OF_JOB, *key)
    return _belonging(replica, SERVICES, REGISTRATIONS_OF_JOB, found, key)


def job_actions(replica: Replica, request: Request, options: ReadOptions) -> Found:
    key = _key(request, options)
    job = replica.get(JOBS, *key)
    if job is None:
        return Found(Missing(f'Unknown job "{key[1]}"'), replica.last_change(JOBS), [watch.one(JOBS, *key)])
    actions = [
        JobAction(
            name=action.name,
            command=action.command,
            args=action.args,
            task_name=task.name,
            task_group_name=group.name,
        )
        for group in job.groups
        for task in group.tasks or ()
        for action in task.actions or ()
    ]
    return Found(actions, job.modify_index, [watch.one(JOBS, *key)])


def job_submission(replica: Replica, request: Request, options: ReadOptions) -> Found:
    """The source of one version; which one must be said."""
    if not request.query.get("version"):
        raise invalid("Unable to parse job submission version parameter")
    key = (*_key(request, options), request.number("version"))
    found = replica.get(SUBMISSIONS, *key)
    index = replica.last_change(SUBMISSIONS) if found is None else found.modify_index
    return Found(found or Missing("job source not found"), index, [watch.one(SUBMISSIONS, *key)])


def job_scale(replica: Replica, request: Request, options: ReadOptions) -> Found:
    key = _key(request, options)
    job = replica.get(JOBS, *key)
    watched = [watch.one(JOBS, *key), watch.those(ALLOCATIONS_OF_JOB, *key), watch.one(SCALING_EVENTS, *key)]
    if job is None:
        return Found(Missing(NOT_FOUND), replica.last_change(JOBS), watched)
    newest = [record.modify_index for record in replica.those(ALLOCATIONS_OF_JOB, *key)]
    events = replica.get(SCALING_EVENTS, *key)
    index = max(job.modify_index, events.modify_index if events is not None else 0, *newest, 0)
    return Found(scale_of(replica, job), index, watched)


def _key(request: Request, options: ReadOptions) -> tuple[str, str]:
    return options.namespace, request.value("job_id")


def _of_this_life(
    replica: Replica, request: Request, options: ReadOptions, index: Index[Any], *, everything: bool
) -> list[Any]:
    """Allocations or deployments in order of creation. A job that was purged and registered again begins anew."""
    key = _key(request, options)
    found = replica.those(index, *key)
    job = replica.get(JOBS, *key)
    if job is not None and not everything:
        found = [record for record in found if record.job_create_index == job.create_index]
    return by_creation(found)


def _belonging(replica: Replica, table: Table[Any], index: Index[Any], shown: list[Any], key: tuple[str, str]) -> Found:
    return Found(shown, replica.last_change(table), [watch.those(index, *key)])


READS: Final[dict[str, Reading]] = {
    "job.list": job_list,
    "job.read": job_read,
    "job.summary": job_summary,
    "job.allocations": job_allocations,
    "job.evaluations": job_evaluations,
    "job.deployments": job_deployments,
    "job.deployment": job_deployment,
    "job.services": job_services,
    "job.actions": job_actions,
    "job.submission": job_submission,
    "job.scale-status": job_scale,
}
