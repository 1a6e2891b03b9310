"""What is done with a specification of a job: it is registered, planned, judged, or only read.

Which namespace it is about the query says, else the body, else the job; the caller needs the rights there, and those to
the volumes that the job uses.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from wharf.access import CallerKind
from wharf.api.answers import Act, Done
from wharf.api.request import Request
from wharf.model import need
from wharf.model.canonical import canonicalize
from wharf.model.job import DEFAULT_REGION, Job
from wharf.model.moment import to_time
from wharf.model.reading import ReadError, decode, read_object, with_nulls
from wharf.model.refusal import Code, Refusal, invalid
from wharf.model.submission import Submission
from wharf.model.volume import VolumeType
from wharf.operations import jobs
from wharf.operations.admission import judge
from wharf.operations.launches import next_launches
from wharf.server.answering.forethought import TRY_JOB, JobToTry
from wharf.server.server import Server
from wharf.wire import shapes
from wharf.wire.job_bodies import (
    JobParseRequest,
    JobPlanRequest,
    JobPlanResponse,
    JobValidateRequest,
    JobValidateResponse,
)

LAUNCHES_TOLD: Final = 5
HCL_LATER: Final = (
    "job files in HCL are not read yet: give the job as JSON, as `wharf job inspect` and GET /v1/job/<id> show it"
)
OBJECT: Final = re.compile(r"\s*\{")


class Asked(Protocol):
    """A body that holds a whole job."""

    @property
    def job(self) -> Job | None: ...
    @property
    def namespace(self) -> str: ...
    @property
    def region(self) -> str: ...


class Submitting:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def register(self, request: Request) -> Done:
        return await self._register(request, job_id=None)

    async def update(self, request: Request) -> Done:
        return await self._register(request, job_id=request.value("job_id"))

    async def _register(self, request: Request, *, job_id: str | None) -> Done:
        read = request.read_body_with_warnings(shapes.JobRegisterRequest)
        asked = read.value
        job = self._job_of(request, asked)
        if job_id is not None and job.id != job_id:
            raise invalid("Job ID does not match name")
        require_rights(request, job, policy_override=asked.policy_override)
        registration = jobs.Registration(
            job=job,
            enforce_index=asked.enforce_index,
            job_modify_index=asked.job_modify_index,
            eval_priority=asked.eval_priority,
            preserve_counts=asked.preserve_counts,
            preserve_resources=asked.preserve_resources,
            submission=_submission(asked.submission, job),
            submission_warnings=read.warnings,
            accessor_id=request.caller.accessor_id,
            is_management=is_management(request),
            cause=request.id,
        )
        settings = self._server.job_settings
        done = await self._server.writer.write(
            lambda snapshot, moment: jobs.register(snapshot, registration, moment, settings)
        )
        reply = register_response(done)
        launches = next_launches(job, to_time(self._server.world.now_ns()), at_most=LAUNCHES_TOLD)
        if job.is_periodic and not job.is_parameterized:
            reply = replace(reply, next_periodic_launches=tuple(launches))
        return Done(reply, done.index)

    async def plan(self, request: Request) -> Done:
        read = request.read_body_with_warnings(JobPlanRequest)
        asked = read.value
        job = self._job_of(request, asked)
        if job.id != request.value("job_id"):
            raise invalid("Job ID does not match")
        require_rights(request, job, policy_override=asked.policy_override)
        await self._server.reader.catch_up()
        server = self._server
        question = JobToTry(
            index=server.replica.index,
            job=job,
            settings=server.job_settings,
            with_diff=asked.diff,
            warnings_of_reading=read.warnings,
            launches=LAUNCHES_TOLD,
        )
        planned = await server.leader.ask_member(server.identity.member_id, TRY_JOB, question)
        launches = planned.next_launches
        reply = JobPlanResponse(
            annotations=planned.annotations,
            failed_tg_allocs=planned.failed_groups,
            job_modify_index=planned.job_modify_index,
            created_evals=planned.created_evaluations,
            diff=planned.diff,
            next_periodic_launch=launches[0] if launches else None,
            next_periodic_launches=launches if job.is_periodic and not job.is_parameterized else msgspec.UNSET,
            warnings=planned.warnings,
            index=planned.job_modify_index,
        )
        return Done(reply, planned.job_modify_index)

    async def validate(self, request: Request) -> Done:
        """What is wrong with a job is the answer, not an error."""
        read = request.read_body_with_warnings(JobValidateRequest)
        job = self._job_of(request, read.value)
        request.require(namespace=job.namespace)
        await self._server.reader.catch_up()
        judged = judge(self._server.replica, job, self._server.job_settings, warnings_of_reading=read.warnings)
        findings = judged.findings
        return Done(
            JobValidateResponse(validation_errors=findings.lines or None, error=findings.text, warnings=judged.warnings)
        )

    async def parse(self, request: Request) -> Done:
        asked = request.read_body(JobParseRequest)
        if not asked.job_hcl.strip():
            raise invalid("Job spec is empty")
        if not OBJECT.match(asked.job_hcl):
            raise Refusal(Code.NOT_OURS, HCL_LATER)
        given = _job_in(asked.job_hcl)
        try:
            job = read_object(Job, given).value
        except ReadError as error:
            raise invalid(f"Failed to parse job: {error}") from error
        if asked.canonicalize:
            return Done(canonicalize(job, self._server.job_settings))
        return Done(with_nulls(Job, _as_read(job, given)))

    def _job_of(self, request: Request, asked: Asked) -> Job:
        """The job of the body, in the namespace that is meant."""
        if asked.job is None:
            raise invalid("Job must be specified")
        namespace = request.query.get("namespace") or asked.namespace or asked.job.namespace or "default"
        region = asked.region or request.query.get("region") or asked.job.region
        if region not in ("", DEFAULT_REGION, self._server.identity.region):
            raise invalid(f"No path to region: this is {self._server.identity.region}; ask with `region={region}`")
        return replace(asked.job, namespace=namespace)


def require_rights(request: Request, job: Job, *, policy_override: bool = False) -> None:
    """Those to do this in the job's namespace, and those to the volumes that its groups use."""
    request.require(namespace=job.namespace)
    if policy_override:
        request.require(need.OVERRIDE_POLICY, namespace=job.namespace)
    for group in job.groups:
        for volume in (group.volumes or {}).values():
            if volume.type == VolumeType.HOST:
                mount = need.MOUNT_READ_ONLY if volume.read_only else need.MOUNT_READ_WRITE
                request.require(mount, label=volume.source)
            elif volume.type == VolumeType.CSI:
                request.require(need.MOUNT_CSI, namespace=job.namespace)


def is_management(request: Request) -> bool:
    """Whether a management token came. While access control is off, nobody has one."""
    return request.caller.kind is CallerKind.MANAGEMENT


def register_response(done: jobs.Registered, *, known_leader: bool = False) -> shapes.JobRegisterResponse:
    return shapes.JobRegisterResponse(
        eval_id=done.eval_id,
        eval_create_index=done.eval_create_index,
        job_modify_index=done.job_modify_index,
        warnings=done.warnings,
        index=done.index,
        known_leader=known_leader,
    )


def _submission(source: shapes.JobSource | None, job: Job) -> Submission | None:
    if source is None:
        return None
    return Submission(
        namespace=job.namespace,
        job_id=job.id,
        source=source.source,
        format=source.format,
        variable_flags=source.variable_flags,
        variables=source.variables,
    )


def _job_in(text: str) -> Mapping[str, Any]:
    """The job in a text of JSON: alone, or as the `Job` of an object. HCL has a JSON form too, which names it instead."""
    try:
        given = decode(text.encode())
    except ReadError as error:
        raise invalid(f"Failed to parse job: {error}") from error
    assert isinstance(given, dict), "what begins with a brace is an object"
    for candidate in (given, next((value for key, value in given.items() if key.lower() == "job"), None)):
        if isinstance(candidate, dict) and any(key.lower() == "id" for key in candidate):
            return candidate
    if any(key.lower() == "job" for key in given):
        raise Refusal(Code.NOT_OURS, HCL_LATER)
    raise invalid("Failed to parse job: the JSON holds no job: neither an ID nor a Job")


def _as_read(job: Job, given: Mapping[str, Any]) -> dict[str, object]:
    """What was given, under the exact names: nothing that the server added."""
    told: dict[str, object] = _only_given(msgspec.to_builtins(job), given)
    return told


def _only_given(told: object, given: object) -> Any:
    if isinstance(told, dict) and isinstance(given, Mapping):
        folded = {key.lower(): value for key, value in given.items()}
        return {
            key: _only_given(value, given[key] if key in given else folded[key.lower()])
            for key, value in told.items()
            if key in given or key.lower() in folded
        }
    if isinstance(told, list | tuple) and isinstance(given, list | tuple):
        return [_only_given(one, other) for one, other in zip(told, given, strict=False)]
    return told


def acts_of(server: Server) -> dict[str, Act]:
    submitting = Submitting(server)
    return {
        "job.register": submitting.register,
        "job.update": submitting.update,
        "job.plan": submitting.plan,
        "job.validate": submitting.validate,
        "job.parse": submitting.parse,
    }
