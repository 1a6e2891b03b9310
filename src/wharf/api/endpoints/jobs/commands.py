"""What people tell a stored job to do: stop, be looked at again, make a child, have another count."""

from wharf.api.answers import Act, Done
from wharf.api.endpoints.jobs.submitting import is_management, register_response
from wharf.api.endpoints.jobs.versions import namespace_of
from wharf.api.request import Request
from wharf.model import need
from wharf.model.job_settings import JobSettings
from wharf.model.refusal import invalid
from wharf.operations.children import Dispatch
from wharf.operations.scaling import Scaling, scale
from wharf.server.answering.jobs import (
    DISPATCH_JOB,
    EVALUATE_JOB,
    FORCE_PERIODIC,
    STOP_JOB,
    JobToDispatch,
    JobToEvaluate,
    JobToLaunch,
    JobToStop,
)
from wharf.server.server import Server
from wharf.wire import shapes
from wharf.wire.job_bodies import (
    JobDispatchRequest,
    JobDispatchResponse,
    JobEvaluateRequest,
    PeriodicForceResponse,
    ScalingRequest,
)


class Commands:
    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def _settings(self) -> JobSettings:
        return self._server.job_settings

    async def deregister(self, request: Request) -> Done:
        purge = request.flag("purge")
        if purge:
            request.require(need.PURGE_JOB, namespace=request.namespace)
        done = await self._server.leader.ask(
            STOP_JOB,
            JobToStop(
                request.namespace,
                request.value("job_id"),
                self._settings,
                eval_priority=request.number("eval_priority"),
                purge=purge,
                no_shutdown_delay=request.flag("no_shutdown_delay"),
                cause=request.id,
            ),
        )
        reply = shapes.JobDeregisterResponse(
            eval_id=done.eval_id,
            eval_create_index=done.eval_create_index,
            job_modify_index=done.job_modify_index,
            index=done.index,
        )
        return Done(reply, done.index)

    async def evaluate(self, request: Request) -> Done:
        job_id = request.value("job_id")
        asked = request.read_body(JobEvaluateRequest) if request.body else JobEvaluateRequest(job_id=job_id)
        if not asked.job_id:
            raise invalid("Job ID must be specified")
        if asked.job_id != job_id:
            raise invalid("JobID not same as job name")
        namespace = namespace_of(request, asked.namespace)
        request.require(namespace=namespace)
        done = await self._server.leader.ask(
            EVALUATE_JOB,
            JobToEvaluate(namespace, job_id, asked.eval_options.force_reschedule, cause=request.id),
        )
        return Done(register_response(done), done.index)

    async def force_periodic(self, request: Request) -> Done:
        made = await self._server.leader.ask(
            FORCE_PERIODIC,
            JobToLaunch(request.namespace, request.value("job_id"), self._settings, cause=request.id),
        )
        reply = PeriodicForceResponse(eval_id=made.eval_id, eval_create_index=made.eval_create_index, index=made.index)
        return Done(reply, made.index)

    async def dispatch(self, request: Request) -> Done:
        asked = request.read_body(JobDispatchRequest)
        if asked.job_id and asked.job_id != request.value("job_id"):
            raise invalid("Job ID does not match")
        namespace = namespace_of(request, asked.namespace)
        request.require(namespace=namespace)
        return await self._dispatch(request, namespace, asked)

    async def dispatch_payload(self, request: Request) -> Done:
        """The body is the payload itself."""
        if not request.body:
            raise invalid("Request body is empty")
        return await self._dispatch(request, request.namespace, JobDispatchRequest(payload=request.body))

    async def _dispatch(self, request: Request, namespace: str, asked: JobDispatchRequest) -> Done:
        dispatch = Dispatch(
            namespace=namespace,
            job_id=request.value("job_id"),
            payload=asked.payload or b"",
            meta=asked.meta or {},
            id_prefix=asked.id_prefix_template,
            priority=asked.priority,
            idempotency_token=request.query.get("idempotency_token") or asked.idempotency_token,
            accessor_id=request.caller.accessor_id,
            is_management=is_management(request),
            cause=request.id,
        )
        made = await self._server.leader.ask(DISPATCH_JOB, JobToDispatch(dispatch, self._settings))
        reply = JobDispatchResponse(
            dispatched_job_id=made.job_id,
            eval_id=made.eval_id,
            eval_create_index=made.eval_create_index,
            job_create_index=made.job_create_index,
            index=made.index,
        )
        return Done(reply, made.index)

    async def scale(self, request: Request) -> Done:
        asked = request.read_body(ScalingRequest)
        job_id, target = request.value("job_id"), asked.target or {}
        namespace = namespace_of(request, asked.namespace)
        if target.get("Job", job_id) != job_id:
            raise invalid("job ID in payload did not match URL")
        if target.get("Namespace", namespace) != namespace:
            raise invalid("namespace in payload did not match header")
        request.require(namespace=namespace)
        if asked.policy_override:
            request.require(need.OVERRIDE_POLICY, namespace=namespace)
        scaling = Scaling(
            namespace=namespace,
            job_id=job_id,
            group=target.get("Group", ""),
            count=asked.count,
            message=asked.message,
            is_error=asked.error,
            meta=asked.meta,
            job_modify_index=asked.job_modify_index,
            accessor_id=request.caller.accessor_id,
            is_management=is_management(request),
            cause=request.id,
        )
        done = await self._server.writer.write(
            lambda snapshot, moment: scale(snapshot, scaling, moment, self._settings)
        )
        return Done(register_response(done, known_leader=True), done.index)


def acts_of(server: Server) -> dict[str, Act]:
    commands = Commands(server)
    return {
        "job.deregister": commands.deregister,
        "job.evaluate": commands.evaluate,
        "job.force-periodic": commands.force_periodic,
        "job.dispatch": commands.dispatch,
        "job.dispatch-payload": commands.dispatch_payload,
        "job.scale": commands.scale,
    }
