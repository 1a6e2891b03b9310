"""Endpoints that take a job specification: register, plan, validate, parse.

The namespace is that of the query, else of the body, else of the job. The caller needs rights in that namespace, and to
the volumes that the job uses.
"""

from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from wharf.cluster.access import CallerKind
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult
from wharf.cluster.operations.jobs.admission import check_against_nodes, validate_submission
from wharf.cluster.operations.jobs.periodic import list_next_launches
from wharf.cluster.operations.jobs.registration import JobRegistration, JobWriteResult, register_job
from wharf.cluster.server.rpc.handlers.dry_runs import DRY_RUN_JOB, DryRunJobRequest
from wharf.cluster.server.server import Server
from wharf.contract.model.acl import permissions
from wharf.contract.model.body_limits import cut_echo
from wharf.contract.model.decoding import DecodingError, UnknownField, convert_object
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.job import DEFAULT_REGION, Job, Submission
from wharf.contract.model.jobs.sensitive_fields import check_pointers
from wharf.contract.model.jobs.validation import format_warnings, merge_findings
from wharf.contract.model.jobs.volumes import VolumeType
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.times import to_datetime
from wharf.contract.wire.jobs import messages
from wharf.contract.wire.jobs.messages import (
    JobParseRequest,
    JobPlanRequest,
    JobPlanResponse,
    JobValidateRequest,
    JobValidateResponse,
)
from wharf.job_files.hcl.parsing import evaluate_hcl_job
from wharf.languages.hcl.calls import FunctionPorts
from wharf.languages.hcl.diagnostics import DocumentErrors
from wharf.languages.hcl.documents import list_declared_names, parse_document, parse_values
from wharf.languages.hcl.variables import VariableInputs
from wharf.world import World

MAX_SHOWN_LAUNCHES: Final = 5
"""The next launches of a periodic job that a reply lists."""
JOB_FILE_NAME: Final = "job.hcl"
"""The name of a submitted job file in messages."""
VALUES_FILE_NAME: Final = "variables"
"""The name of submitted values of variables in messages."""
HIDDEN_DIFF_WARNING: Final = (
    "the plan has no diff: it shows the stored job, and the token lacks the capability read-job in this namespace"
)


class JobSpecificationBody(Protocol):
    """A decoded request body that contains a whole job."""

    @property
    def job(self) -> Job | None: ...
    @property
    def namespace(self) -> str: ...
    @property
    def region(self) -> str: ...


class JobSpecificationActions:
    """Executes requests whose body contains a whole job: register, plan, validate, parse."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def register_job(self, request: Request) -> ActionResult:
        return await self._register(request, job_id=None)

    async def update_job(self, request: Request) -> ActionResult:
        return await self._register(request, job_id=request.get_path_value("job_id"))

    async def _register(self, request: Request, *, job_id: str | None) -> ActionResult:
        """Register the job of the body. Raises `Refusal` if its id differs from `job_id`; `None` accepts any id."""
        decoded = request.decode_body_with_warnings(messages.JobRegisterRequest)
        body = decoded.value
        job = self._get_job(request, body)
        if job_id is not None and job.id != job_id:
            raise invalid_request("Job ID does not match name")
        require_job_permissions(request, job, policy_override=body.policy_override)
        registration = JobRegistration(
            job=job,
            should_enforce_index=body.enforce_index,
            job_modify_index=body.job_modify_index,
            eval_priority=body.eval_priority,
            should_preserve_counts=body.preserve_counts,
            should_preserve_resources=body.preserve_resources,
            submission=_build_submission(body.submission, job),
            submission_warnings=decoded.warnings,
            accessor_id=request.caller.accessor_id,
            is_management=has_management_token(request),
            cause=request.id,
        )
        settings = self._server.job_settings
        result = await self._server.writer.execute(
            lambda snapshot, context: register_job(snapshot, registration, context, settings)
        )
        reply = build_register_response(result)
        launches = list_next_launches(job, to_datetime(self._server.world.now_ns()), max_launches=MAX_SHOWN_LAUNCHES)
        if job.is_periodic and not job.is_parameterized:
            reply = replace(reply, next_periodic_launches=tuple(launches))
        return ActionResult(reply, result.index)

    async def plan_job(self, request: Request) -> ActionResult:
        """Return what the scheduler would do if the job of the body were registered. Nothing is written."""
        decoded = request.decode_body_with_warnings(JobPlanRequest)
        body = decoded.value
        job = self._get_job(request, body)
        if job.id != request.get_path_value("job_id"):
            raise invalid_request("Job ID does not match")
        check_pointers(body.sensitive_fields, "SensitiveFields")
        require_job_permissions(request, job, policy_override=body.policy_override)
        await self._server.reader.catch_up()
        server = self._server
        # The diff shows the stored job, which only its readers may see.
        can_read = request.has_permission(permissions.READ_JOB, namespace=job.namespace)
        dry_run = DryRunJobRequest(
            index=server.replica.index,
            job=msgspec.Raw(msgspec.msgpack.encode(job)),
            settings=server.job_settings,
            with_diff=body.diff and can_read,
            sensitive_fields=body.sensitive_fields or (),
            warnings_of_reading=(
                decoded.warnings if can_read or not body.diff else (*decoded.warnings, HIDDEN_DIFF_WARNING)
            ),
            launches=MAX_SHOWN_LAUNCHES,
            owner=request.owner,
        )
        result = await server.leader.call_member(server.identity.member_id, DRY_RUN_JOB, dry_run)
        plan = result.plan
        diff: Any = msgspec.Raw(result.diff) if result.diff else None
        launches = plan.next_launches
        reply = JobPlanResponse(
            annotations=plan.annotations,
            failed_tg_allocs=plan.failed_groups,
            explanations=plan.explanations or msgspec.UNSET,
            job_modify_index=plan.job_modify_index,
            created_evals=plan.created_evaluations,
            diff=diff,
            next_periodic_launch=launches[0] if launches else None,
            next_periodic_launches=launches if job.is_periodic and not job.is_parameterized else msgspec.UNSET,
            warnings=plan.warnings,
            index=plan.job_modify_index,
        )
        return ActionResult(reply, plan.job_modify_index)

    async def validate_job(self, request: Request) -> ActionResult:
        """Return the validation errors and warnings of the job in the body.

        The status is 200 even if the job is invalid.
        """
        decoded = request.decode_body_with_warnings(JobValidateRequest)
        job = self._get_job(request, decoded.value)
        request.require_permission(namespace=job.namespace)
        await self._server.reader.catch_up()
        validation = validate_submission(
            self._server.replica, job, self._server.job_settings, parser_warnings=decoded.warnings
        )
        in_cluster = check_against_nodes(self._server.replica, validation.job)
        findings = merge_findings(validation.findings, in_cluster)
        warnings = format_warnings([*validation.warnings, *in_cluster.warnings])
        return ActionResult(
            JobValidateResponse(validation_errors=findings.lines or None, error=findings.text, warnings=warnings)
        )

    async def parse_job(self, request: Request) -> ActionResult:
        """Return the job of a file in HCL as JSON. Raises `Refusal` with all errors of the file.

        With `canonicalize`, the reply is the job as it would be stored.
        """
        decoded = request.decode_body_with_warnings(JobParseRequest)
        body = decoded.value
        if not body.job_hcl.strip():
            # A misspelled key, such as `HCL`, explains why the text is missing.
            raise invalid_request("; ".join(["Job spec is empty", *map(_describe_unknown_key, decoded.unknown_fields)]))
        try:
            document = parse_document(body.job_hcl, JOB_FILE_NAME)
            names = list_declared_names(document)
            values = (parse_values(body.variables, VALUES_FILE_NAME, names),) if body.variables.strip() else ()
            ports = FunctionPorts(WorldRandomPort(self._server.world))
            parsed = evaluate_hcl_job(document, VariableInputs(files=values), ports)
        except DocumentErrors as errors:
            raise invalid_request(errors.text) from errors
        if not body.canonicalize:
            return ActionResult(parsed.document)
        try:
            job = convert_object(Job, parsed.document).value
        except DecodingError as error:
            problems = [parsed.render_problem(each.path, each.path, each.message) for each in error.problems]
            raise invalid_request("\n".join(problems)) from error
        return ActionResult(canonicalize_job(job, self._server.job_settings))

    def _get_job(self, request: Request, body: JobSpecificationBody) -> Job:
        """Return the job of the body, with its namespace set to that of the query, else the body, else the job.

        Raises `Refusal` if the body has no job or names a region other than this one.
        """
        if body.job is None:
            raise invalid_request("Job must be specified")
        namespace = request.query.get("namespace") or body.namespace or body.job.namespace or "default"
        region = body.region or request.query.get("region") or body.job.region
        if region not in ("", DEFAULT_REGION, self._server.identity.region):
            raise invalid_request(
                f"No path to region: this region is {self._server.identity.region}; send the request with `region={cut_echo(region)}`"
            )
        return replace(body.job, namespace=namespace)


def _describe_unknown_key(field: UnknownField) -> str:
    """Return what is wrong with a key of a request to parse a job file. The text of the file is in `JobHCL`."""
    suggestion = field.suggestion or "JobHCL"
    return f"{field.path} is not a known field: did you mean {suggestion}?"


def require_job_permissions(request: Request, job: Job, *, policy_override: bool = False) -> None:
    """Raise a `Refusal` unless the caller may use the endpoint in the job's namespace and mount all volumes of the job.

    `policy_override`: whether the request overrides policies, which needs a further permission.
    """
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
    """Return whether the caller has a management token. While access control is off, no caller has one."""
    return request.caller.kind is CallerKind.MANAGEMENT


def build_register_response(result: JobWriteResult, *, is_leader_known: bool = False) -> messages.JobRegisterResponse:
    """Return the reply to a write of a job: the evaluation, the indexes and the warnings."""
    return messages.JobRegisterResponse(
        eval_id=result.eval_id,
        eval_create_index=result.eval_create_index,
        job_modify_index=result.job_modify_index,
        warnings=result.warnings,
        index=result.index,
        known_leader=is_leader_known,
    )


def hide_warnings(request: Request, result: JobWriteResult, namespace: str) -> JobWriteResult:
    """Return the result without warnings if the caller may not read the stored job, whose fields warnings can quote."""
    return result if request.has_permission(permissions.READ_JOB, namespace=namespace) else replace(result, warnings="")


def _build_submission(source: messages.JobSource | None, job: Job) -> Submission | None:
    """Return the source of the job to store, or `None` if the request has none. Raises `Refusal`."""
    if source is None:
        return None
    check_pointers(source.sensitive_fields, "Submission.SensitiveFields")
    return Submission(
        namespace=job.namespace,
        job_id=job.id,
        source=source.source,
        format=source.format,
        variable_flags=source.variable_flags,
        variables=source.variables,
        sensitive_fields=source.sensitive_fields,
    )


class WorldRandomPort:
    """The random bytes of functions of job files."""

    def __init__(self, world: World) -> None:
        self._world = world

    def draw_bytes(self, count: int) -> bytes:
        return self._world.token_bytes(count)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = JobSpecificationActions(server)
    return {
        "job.register": actions.register_job,
        "job.update": actions.update_job,
        "job.plan": actions.plan_job,
        "job.validate": actions.validate_job,
        "job.parse": actions.parse_job,
    }
