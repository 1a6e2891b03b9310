"""What people tell a stored job to do: stop, be looked at again, make a child, have another count."""

from wharf.cluster.api.handlers.jobs.specification import build_register_response, has_management_token
from wharf.cluster.api.handlers.jobs.versions import resolve_namespace
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult
from wharf.cluster.operations.jobs.dispatch import DispatchRequest
from wharf.cluster.operations.jobs.scaling import GroupScaling, scale_group
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
from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire.jobs import messages
from wharf.contract.wire.jobs.messages import (
    JobDispatchRequest,
    JobDispatchResponse,
    JobEvaluateRequest,
    PeriodicForceResponse,
    ScalingRequest,
)


class JobControlActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def _settings(self) -> JobSettings:
        return self._server.job_settings

    async def deregister_job(self, request: Request) -> ActionResult:
        purge = request.get_flag("purge")
        if purge:
            request.require_permission(permissions.PURGE_JOB, namespace=request.namespace)
        done = await self._server.leader.call(
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
            eval_id=done.eval_id,
            eval_create_index=done.eval_create_index,
            job_modify_index=done.job_modify_index,
            index=done.index,
        )
        return ActionResult(reply, done.index)

    async def evaluate_job(self, request: Request) -> ActionResult:
        job_id = request.get_path_value("job_id")
        asked = request.decode_body(JobEvaluateRequest) if request.body else JobEvaluateRequest(job_id=job_id)
        if not asked.job_id:
            raise invalid_request("Job ID must be specified")
        if asked.job_id != job_id:
            raise invalid_request("JobID not same as job name")
        namespace = resolve_namespace(request, asked.namespace)
        request.require_permission(namespace=namespace)
        done = await self._server.leader.call(
            EVALUATE_JOB,
            EvaluateJobRequest(namespace, job_id, asked.eval_options.force_reschedule, cause=request.id),
        )
        return ActionResult(build_register_response(done), done.index)

    async def force_periodic_launch(self, request: Request) -> ActionResult:
        made = await self._server.leader.call(
            FORCE_PERIODIC,
            ForcePeriodicRequest(request.namespace, request.get_path_value("job_id"), self._settings, cause=request.id),
        )
        reply = PeriodicForceResponse(eval_id=made.eval_id, eval_create_index=made.eval_create_index, index=made.index)
        return ActionResult(reply, made.index)

    async def dispatch_job(self, request: Request) -> ActionResult:
        asked = request.decode_body(JobDispatchRequest)
        if asked.job_id and asked.job_id != request.get_path_value("job_id"):
            raise invalid_request("Job ID does not match")
        namespace = resolve_namespace(request, asked.namespace)
        request.require_permission(namespace=namespace)
        return await self._dispatch(request, namespace, asked)

    async def dispatch_payload(self, request: Request) -> ActionResult:
        """The body is the payload itself."""
        if not request.body:
            raise invalid_request("Request body is empty")
        return await self._dispatch(request, request.namespace, JobDispatchRequest(payload=request.body))

    async def _dispatch(self, request: Request, namespace: str, asked: JobDispatchRequest) -> ActionResult:
        dispatch = DispatchRequest(
            namespace=namespace,
            job_id=request.get_path_value("job_id"),
            payload=asked.payload or b"",
            meta=asked.meta or {},
            id_prefix=asked.id_prefix_template,
            priority=asked.priority,
            idempotency_token=request.query.get("idempotency_token") or asked.idempotency_token,
            accessor_id=request.caller.accessor_id,
            is_management=has_management_token(request),
            cause=request.id,
        )
        made = await self._server.leader.call(DISPATCH_JOB, DispatchJobRequest(dispatch, self._settings))
        reply = JobDispatchResponse(
            dispatched_job_id=made.job_id,
            eval_id=made.eval_id,
            eval_create_index=made.eval_create_index,
            job_create_index=made.job_create_index,
            index=made.index,
        )
        return ActionResult(reply, made.index)

    async def scale_job(self, request: Request) -> ActionResult:
        asked = request.decode_body(ScalingRequest)
        job_id, target = request.get_path_value("job_id"), asked.target or {}
        namespace = resolve_namespace(request, asked.namespace)
        if target.get("Job", job_id) != job_id:
            raise invalid_request("job ID in payload did not match URL")
        if target.get("Namespace", namespace) != namespace:
            raise invalid_request("namespace in payload did not match header")
        request.require_permission(namespace=namespace)
        if asked.policy_override:
            request.require_permission(permissions.OVERRIDE_POLICY, namespace=namespace)
        scaling = GroupScaling(
            namespace=namespace,
            job_id=job_id,
            group=target.get("Group", ""),
            count=asked.count,
            message=asked.message,
            is_error=asked.error,
            meta=asked.meta,
            job_modify_index=asked.job_modify_index,
            accessor_id=request.caller.accessor_id,
            is_management=has_management_token(request),
            cause=request.id,
        )
        done = await self._server.writer.execute(
            lambda snapshot, moment: scale_group(snapshot, scaling, moment, self._settings)
        )
        return ActionResult(build_register_response(done, is_leader_known=True), done.index)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    commands = JobControlActions(server)
    return {
        "job.deregister": commands.deregister_job,
        "job.evaluate": commands.evaluate_job,
        "job.force-periodic": commands.force_periodic_launch,
        "job.dispatch": commands.dispatch_job,
        "job.dispatch-payload": commands.dispatch_payload,
        "job.scale": commands.scale_job,
    }
