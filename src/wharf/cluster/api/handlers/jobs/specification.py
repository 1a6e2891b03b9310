"""What is done with a specification of a job: it is registered, planned, judged, or only read.

Which namespace it is about the query says, else the body, else the job; the caller needs the rights there, and those to
the volumes that the job uses.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from wharf.cluster.access import CallerKind
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult
from wharf.cluster.operations.jobs import registration as jobs
from wharf.cluster.operations.jobs.admission import validate_submission
from wharf.cluster.operations.jobs.periodic import list_next_launches
from wharf.cluster.server.rpc.handlers.dry_runs import DRY_RUN_JOB, DryRunJobRequest
from wharf.cluster.server.server import Server
from wharf.contract.model.acl import permissions
from wharf.contract.model.decoding import DecodingError, convert_object, decode_json, fill_with_nulls
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.job import DEFAULT_REGION, Job, Submission
from wharf.contract.model.jobs.volumes import VolumeType
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.model.times import to_datetime
from wharf.contract.wire.jobs import messages
from wharf.contract.wire.jobs.messages import (
    JobParseRequest,
    JobPlanRequest,
    JobPlanResponse,
    JobValidateRequest,
    JobValidateResponse,
)

MAX_SHOWN_LAUNCHES: Final = 5
HCL_UNSUPPORTED_TEXT: Final = (
    "job files in HCL are not read yet: give the job as JSON, as `wharf job inspect` and GET /v1/job/<id> show it"
)
JSON_OBJECT_PATTERN: Final = re.compile(r"\s*\{")


class JobSpecificationBody(Protocol):
    """A body that holds a whole job."""

    @property
    def job(self) -> Job | None: ...
    @property
    def namespace(self) -> str: ...
    @property
    def region(self) -> str: ...


class JobSpecificationActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def register_job(self, request: Request) -> ActionResult:
        return await self._register(request, job_id=None)

    async def update_job(self, request: Request) -> ActionResult:
        return await self._register(request, job_id=request.get_path_value("job_id"))

    async def _register(self, request: Request, *, job_id: str | None) -> ActionResult:
        read = request.decode_body_with_warnings(messages.JobRegisterRequest)
        asked = read.value
        job = self._job_of(request, asked)
        if job_id is not None and job.id != job_id:
            raise invalid_request("Job ID does not match name")
        require_job_permissions(request, job, policy_override=asked.policy_override)
        registration = jobs.JobRegistration(
            job=job,
            should_enforce_index=asked.enforce_index,
            job_modify_index=asked.job_modify_index,
            eval_priority=asked.eval_priority,
            should_preserve_counts=asked.preserve_counts,
            should_preserve_resources=asked.preserve_resources,
            submission=_submission(asked.submission, job),
            submission_warnings=read.warnings,
            accessor_id=request.caller.accessor_id,
            is_management=has_management_token(request),
            cause=request.id,
        )
        settings = self._server.job_settings
        done = await self._server.writer.execute(
            lambda snapshot, moment: jobs.register_job(snapshot, registration, moment, settings)
        )
        reply = build_register_response(done)
        launches = list_next_launches(job, to_datetime(self._server.world.now_ns()), max_launches=MAX_SHOWN_LAUNCHES)
        if job.is_periodic and not job.is_parameterized:
            reply = replace(reply, next_periodic_launches=tuple(launches))
        return ActionResult(reply, done.index)

    async def plan_job(self, request: Request) -> ActionResult:
        read = request.decode_body_with_warnings(JobPlanRequest)
        asked = read.value
        job = self._job_of(request, asked)
        if job.id != request.get_path_value("job_id"):
            raise invalid_request("Job ID does not match")
        require_job_permissions(request, job, policy_override=asked.policy_override)
        await self._server.reader.catch_up()
        server = self._server
        question = DryRunJobRequest(
            index=server.replica.index,
            job=job,
            settings=server.job_settings,
            with_diff=asked.diff,
            warnings_of_reading=read.warnings,
            launches=MAX_SHOWN_LAUNCHES,
        )
        planned = await server.leader.call_member(server.identity.member_id, DRY_RUN_JOB, question)
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
        return ActionResult(reply, planned.job_modify_index)

    async def validate_job(self, request: Request) -> ActionResult:
        """What is wrong with a job is the answer, not an error."""
        read = request.decode_body_with_warnings(JobValidateRequest)
        job = self._job_of(request, read.value)
        request.require_permission(namespace=job.namespace)
        await self._server.reader.catch_up()
        judged = validate_submission(
            self._server.replica, job, self._server.job_settings, parser_warnings=read.warnings
        )
        findings = judged.findings
        return ActionResult(
            JobValidateResponse(validation_errors=findings.lines or None, error=findings.text, warnings=judged.warnings)
        )

    async def parse_job(self, request: Request) -> ActionResult:
        asked = request.decode_body(JobParseRequest)
        if not asked.job_hcl.strip():
            raise invalid_request("Job spec is empty")
        if not JSON_OBJECT_PATTERN.match(asked.job_hcl):
            raise Refusal(RefusalCode.NOT_IMPLEMENTED, HCL_UNSUPPORTED_TEXT)
        given = _job_in(asked.job_hcl)
        try:
            job = convert_object(Job, given).value
        except DecodingError as error:
            raise invalid_request(f"Failed to parse job: {error}") from error
        if asked.canonicalize:
            return ActionResult(canonicalize_job(job, self._server.job_settings))
        return ActionResult(fill_with_nulls(Job, _as_read(job, given)))

    def _job_of(self, request: Request, asked: JobSpecificationBody) -> Job:
        """The job of the body, in the namespace that is meant."""
        if asked.job is None:
            raise invalid_request("Job must be specified")
        namespace = request.query.get("namespace") or asked.namespace or asked.job.namespace or "default"
        region = asked.region or request.query.get("region") or asked.job.region
        if region not in ("", DEFAULT_REGION, self._server.identity.region):
            raise invalid_request(
                f"No path to region: this is {self._server.identity.region}; ask with `region={region}`"
            )
        return replace(asked.job, namespace=namespace)


def require_job_permissions(request: Request, job: Job, *, policy_override: bool = False) -> None:
    """Those to do this in the job's namespace, and those to the volumes that its groups use."""
    request.require_permission(namespace=job.namespace)
    if policy_override:
        request.require_permission(permissions.OVERRIDE_POLICY, namespace=job.namespace)
    for group in job.groups:
        for volume in (group.volumes or {}).values():
            if volume.type == VolumeType.HOST:
                mount = (
                    permissions.MOUNT_HOST_VOLUME_READ_ONLY
                    if volume.read_only
                    else permissions.MOUNT_HOST_VOLUME_READ_WRITE
                )
                request.require_permission(mount, label=volume.source)
            elif volume.type == VolumeType.CSI:
                request.require_permission(permissions.MOUNT_CSI_VOLUME, namespace=job.namespace)


def has_management_token(request: Request) -> bool:
    """Whether a management token came. While access control is off, nobody has one."""
    return request.caller.kind is CallerKind.MANAGEMENT


def build_register_response(
    done: jobs.JobWriteResult, *, is_leader_known: bool = False
) -> messages.JobRegisterResponse:
    return messages.JobRegisterResponse(
        eval_id=done.eval_id,
        eval_create_index=done.eval_create_index,
        job_modify_index=done.job_modify_index,
        warnings=done.warnings,
        index=done.index,
        known_leader=is_leader_known,
    )


def _submission(source: messages.JobSource | None, job: Job) -> Submission | None:
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
        given = decode_json(text.encode())
    except DecodingError as error:
        raise invalid_request(f"Failed to parse job: {error}") from error
    assert isinstance(given, dict), "what begins with a brace is an object"
    for candidate in (given, next((value for key, value in given.items() if key.lower() == "job"), None)):
        if isinstance(candidate, dict) and any(key.lower() == "id" for key in candidate):
            return candidate
    if any(key.lower() == "job" for key in given):
        raise Refusal(RefusalCode.NOT_IMPLEMENTED, HCL_UNSUPPORTED_TEXT)
    raise invalid_request("Failed to parse job: the JSON holds no job: neither an ID nor a Job")


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


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    submitting = JobSpecificationActions(server)
    return {
        "job.register": submitting.register_job,
        "job.update": submitting.update_job,
        "job.plan": submitting.plan_job,
        "job.validate": submitting.validate_job,
        "job.parse": submitting.parse_job,
    }
