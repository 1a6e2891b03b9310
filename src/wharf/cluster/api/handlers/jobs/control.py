"""Endpoints that control a registered job: stop, evaluate, dispatch, launch periodically, scale."""

from wharf.cluster.api.handlers.jobs.specification import (
    build_register_response,
    has_management_token,
    hide_warnings,
)
from wharf.cluster.api.handlers.jobs.versions import resolve_namespace
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult
from wharf.cluster.operations.jobs.dispatch import DispatchRequest
from wharf.cluster.operations.jobs.rerun import RerunRequest, rerun_elements
from wharf.cluster.operations.jobs.scaling import GroupScaling, scale_group
from wharf.cluster.operations.jobs.stop_elements import StopElementsRequest, stop_elements
from wharf.cluster.server.rpc.handlers.jobs import (
    DISPATCH_JOB,
    EVALUATE_JOB,
    FORCE_PERIODIC,
    STOP_JOB,
    DispatchJobRequest,
    EvaluateJobRequest,
    ForcePeriodicRequest,
    StopJobRequest,
)
from wharf.cluster.server.server import Server
from wharf.contract.model.acl import permissions
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.refusal import RefusalReason, invalid_request
from wharf.contract.wire.jobs import messages
from wharf.contract.wire.jobs.messages import (
    JobDispatchRequest,
    JobDispatchResponse,
    JobEvaluateRequest,
    JobRerunRequest,
    JobRerunResponse,
    JobStopElementsRequest,
    JobStopElementsResponse,
    PeriodicForceResponse,
    ScalingRequest,
)


class JobControlActions:
    """Changes registered jobs. The leader decides all changes except scaling."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def _settings(self) -> JobSettings:
        return self._server.job_settings

    async def deregister_job(self, request: Request) -> ActionResult:
        """Stop the job; with `purge`, also delete it."""
        purge = request.get_flag("purge")
        if purge:
            request.require_permission(permissions.PURGE_JOB, namespace=request.namespace)
        result = await self._server.leader.call(
            STOP_JOB,
            StopJobRequest(
                request.namespace,
                request.get_path_value("job_id"),
                self._settings,
                eval_priority=request.get_number("eval_priority"),
                purge=purge,
                no_shutdown_delay=request.get_flag("no_shutdown_delay"),
                cause=request.id,
            ),
        )
        reply = messages.JobDeregisterResponse(
            eval_id=result.eval_id,
            eval_create_index=result.eval_create_index,
            job_modify_index=result.job_modify_index,
            index=result.index,
        )
        return ActionResult(reply, result.index)

    async def evaluate_job(self, request: Request) -> ActionResult:
        """Create an evaluation of the job; the body can request to reschedule its failed allocations."""
        job_id = request.get_path_value("job_id")
        body = request.decode_body(JobEvaluateRequest) if request.body else JobEvaluateRequest(job_id=job_id)
        if not body.job_id:
            raise invalid_request("Job ID must be specified")
        if body.job_id != job_id:
            raise invalid_request("JobID not same as job name")
        namespace = resolve_namespace(request, body.namespace)
        request.require_permission(namespace=namespace)
        result = await self._server.leader.call(
            EVALUATE_JOB,
            EvaluateJobRequest(namespace, job_id, body.eval_options.force_reschedule, cause=request.id),
        )
        return ActionResult(build_register_response(result), result.index)

    async def force_periodic_launch(self, request: Request) -> ActionResult:
        """Launch a periodic job now."""
        result = await self._server.leader.call(
            FORCE_PERIODIC,
            ForcePeriodicRequest(request.namespace, request.get_path_value("job_id"), self._settings, cause=request.id),
        )
        reply = PeriodicForceResponse(
            eval_id=result.eval_id, eval_create_index=result.eval_create_index, index=result.index
        )
        return ActionResult(reply, result.index)

    async def dispatch_job(self, request: Request) -> ActionResult:
        """Dispatch the parameterized job with the payload and metadata of the body."""
        body = request.decode_body(JobDispatchRequest)
        if body.job_id and body.job_id != request.get_path_value("job_id"):
            raise invalid_request("Job ID does not match")
        namespace = resolve_namespace(request, body.namespace)
        request.require_permission(namespace=namespace)
        return await self._dispatch(request, namespace, body)

    async def dispatch_payload(self, request: Request) -> ActionResult:
        """Dispatch the parameterized job with the whole request body as payload."""
        if not request.body:
            raise invalid_request("Request body is empty", RefusalReason.EMPTY_BODY)
        return await self._dispatch(request, request.namespace, JobDispatchRequest(payload=request.body))

    async def _dispatch(self, request: Request, namespace: str, body: JobDispatchRequest) -> ActionResult:
        """Create a child of a parameterized job with the payload and metadata of `body`."""
        dispatch = DispatchRequest(
            namespace=namespace,
            job_id=request.get_path_value("job_id"),
            payload=body.payload or b"",
            meta=body.meta or {},
            id_prefix=body.id_prefix_template,
            priority=body.priority,
            idempotency_token=request.query.get("idempotency_token") or body.idempotency_token,
            accessor_id=request.caller.accessor_id,
            is_management=has_management_token(request),
            cause=request.id,
        )
        result = await self._server.leader.call(DISPATCH_JOB, DispatchJobRequest(dispatch, self._settings))
        reply = JobDispatchResponse(
            dispatched_job_id=result.job_id,
            eval_id=result.eval_id,
            eval_create_index=result.eval_create_index,
            job_create_index=result.job_create_index,
            index=result.index,
        )
        return ActionResult(reply, result.index)

    async def scale_job(self, request: Request) -> ActionResult:
        """Set the count of the group in the body. Without a count, only record a scaling event."""
        body = request.decode_body(ScalingRequest)
        job_id, target = request.get_path_value("job_id"), body.target or {}
        namespace = resolve_namespace(request, body.namespace)
        if target.get("Job", job_id) != job_id:
            raise invalid_request("job ID in payload did not match URL")
        if target.get("Namespace", namespace) != namespace:
            raise invalid_request("namespace in payload did not match header")
        request.require_permission(namespace=namespace)
        if body.policy_override:
            request.require_permission(permissions.OVERRIDE_POLICY, namespace=namespace)
        scaling = GroupScaling(
            namespace=namespace,
            job_id=job_id,
            group=target.get("Group", ""),
            count=body.count,
            message=body.message,
            is_error=body.error,
            meta=body.meta,
            job_modify_index=body.job_modify_index,
            accessor_id=request.caller.accessor_id,
            is_management=has_management_token(request),
            cause=request.id,
        )
        result = await self._server.writer.execute(
            lambda snapshot, context: scale_group(snapshot, scaling, context, self._settings)
        )
        result = hide_warnings(request, result, namespace)
        return ActionResult(build_register_response(result, is_leader_known=True), result.index)

    async def rerun_elements(self, request: Request) -> ActionResult:
        """Run elements of the arrays of the job again."""
        body = request.decode_body(JobRerunRequest)
        job_id = request.get_path_value("job_id")
        if body.job_id and body.job_id != job_id:
            raise invalid_request("Job ID does not match")
        rerun = RerunRequest(
            namespace=request.namespace,
            job_id=job_id,
            group=body.group,
            failed=body.failed,
            indexes=body.indexes,
            is_management=has_management_token(request),
            may_start=request.has_permission(permissions.REGISTER_JOB, namespace=request.namespace),
            cause=request.id,
        )
        result = await self._server.writer.execute(
            lambda snapshot, context: rerun_elements(snapshot, rerun, context, self._settings)
        )
        reply = JobRerunResponse(
            eval_id=result.eval_id,
            eval_create_index=result.eval_create_index,
            job_modify_index=result.job_modify_index,
            attempt=result.attempt,
            element_count=result.element_count,
            index=result.index,
        )
        return ActionResult(reply, result.index)

    async def stop_elements(self, request: Request) -> ActionResult:
        """Stop elements of an array of the job."""
        body = request.decode_body(JobStopElementsRequest)
        job_id = request.get_path_value("job_id")
        if body.job_id and body.job_id != job_id:
            raise invalid_request("Job ID does not match")
        stop = StopElementsRequest(
            namespace=request.namespace, job_id=job_id, indexes=body.indexes, group=body.group, cause=request.id
        )
        result = await self._server.writer.execute(lambda snapshot, context: stop_elements(snapshot, stop, context))
        reply = JobStopElementsResponse(
            eval_id=result.eval_id,
            eval_create_index=result.eval_create_index,
            job_modify_index=result.job_modify_index,
            element_count=result.element_count,
            index=result.index,
        )
        return ActionResult(reply, result.index)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = JobControlActions(server)
    return {
        "job.deregister": actions.deregister_job,
        "job.evaluate": actions.evaluate_job,
        "job.force-periodic": actions.force_periodic_launch,
        "job.dispatch": actions.dispatch_job,
        "job.dispatch-payload": actions.dispatch_payload,
        "job.scale": actions.scale_job,
        "job.rerun": actions.rerun_elements,
        "job.stop-elements": actions.stop_elements,
    }
