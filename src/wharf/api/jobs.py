"""Endpoints of jobs."""

from typing import Final

import msgspec

from wharf.api.allocations import allocation_stub
from wharf.api.answers import Act, Done, Reading, by_creation, one
from wharf.api.job_stubs import job_stub
from wharf.api.listing import Listing, by_namespace
from wharf.api.request import ReadOptions, Request
from wharf.model.job import Job
from wharf.model.refusal import Code, Refusal, invalid
from wharf.operations import jobs
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state import watches as watch
from wharf.state.tables import ALLOCATIONS, ALLOCATIONS_OF_JOB, EVALUATIONS, EVALUATIONS_OF_JOB, JOBS, SUMMARIES
from wharf.wire import shapes


def job_list(replica: Replica, _request: Request, options: ReadOptions) -> Listing[Job]:
    return by_namespace(
        replica,
        JOBS,
        options,
        SUMMARIES,
        shown=lambda job: job_stub(replica, job),
        form="job.list",
        rests_on=lambda job: replica.get(SUMMARIES, job.namespace, job.id),
    )


def job_read(replica: Replica, request: Request, options: ReadOptions) -> Found:
    return Found(*one(replica, JOBS, options.namespace, request.value("job_id"), missing="job not found"))


def job_summary(replica: Replica, request: Request, options: ReadOptions) -> Found:
    return Found(*one(replica, SUMMARIES, options.namespace, request.value("job_id"), missing="job not found"))


def job_allocations(replica: Replica, request: Request, options: ReadOptions) -> Found:
    key = (options.namespace, request.value("job_id"))
    found = by_creation(replica.those(ALLOCATIONS_OF_JOB, *key))
    stubs = [allocation_stub(replica, allocation) for allocation in found]
    return Found(stubs, replica.last_change(ALLOCATIONS), [watch.those(ALLOCATIONS_OF_JOB, *key)])


def job_evaluations(replica: Replica, request: Request, options: ReadOptions) -> Found:
    key = (options.namespace, request.value("job_id"))
    found = by_creation(replica.those(EVALUATIONS_OF_JOB, *key))
    return Found(found, replica.last_change(EVALUATIONS), [watch.those(EVALUATIONS_OF_JOB, *key)])


READS: Final[dict[str, Reading]] = {
    "job.list": job_list,
    "job.read": job_read,
    "job.allocations": job_allocations,
    "job.evaluations": job_evaluations,
    "job.summary": job_summary,
}


class JobWrites:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def register(self, request: Request) -> Done:
        return await self._register(request, job_id=None)

    async def update(self, request: Request) -> Done:
        return await self._register(request, job_id=request.value("job_id"))

    async def _register(self, request: Request, *, job_id: str | None) -> Done:
        read = request.read_body_with_warnings(shapes.JobRegisterRequest)
        asked = read.value
        if asked.job is None:
            raise invalid("Job must be specified")
        if job_id is not None and asked.job.id != job_id:
            raise invalid("Job ID does not match name")
        namespace = request.query.get("namespace") or asked.namespace or asked.job.namespace or "default"
        request.require(namespace=namespace)
        registration = jobs.Registration(
            job=msgspec.structs.replace(asked.job, namespace=namespace),
            enforce_index=asked.enforce_index,
            job_modify_index=asked.job_modify_index,
            eval_priority=asked.eval_priority,
            preserve_counts=asked.preserve_counts,
            preserve_resources=asked.preserve_resources,
            submission_warnings=read.warnings,
            cause=request.id,
        )
        settings = self._server.job_settings
        done = await self._server.writer.write(
            lambda snapshot, moment: jobs.register(snapshot, registration, moment, settings)
        )
        reply = shapes.JobRegisterResponse(
            eval_id=done.eval_id,
            eval_create_index=done.eval_create_index,
            job_modify_index=done.job_modify_index,
            warnings=done.warnings,
            index=done.index,
        )
        return Done(reply, done.index)

    async def deregister(self, request: Request) -> Done:
        namespace, job_id = request.namespace, request.value("job_id")
        priority = request.number("eval_priority")
        if request.flag("purge"):
            raise Refusal(Code.NOT_OURS, "a job cannot be purged yet: stop it without purge; it is collected later")
        done = await self._server.writer.write(
            lambda snapshot, moment: jobs.deregister(
                snapshot, namespace, job_id, moment, eval_priority=priority, cause=request.id
            )
        )
        reply = shapes.JobDeregisterResponse(
            eval_id=done.eval_id,
            eval_create_index=done.eval_create_index,
            job_modify_index=done.job_modify_index,
            index=done.index,
        )
        return Done(reply, done.index)


def acts_of(server: Server) -> dict[str, Act]:
    writes = JobWrites(server)
    return {"job.register": writes.register, "job.update": writes.update, "job.deregister": writes.deregister}
