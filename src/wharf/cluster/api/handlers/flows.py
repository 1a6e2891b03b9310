"""Endpoints of flows and their runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from wharf.cluster.access.caller import CallerKind
from wharf.cluster.api.handlers.jobs.reads import JOB_NOT_FOUND_TEXT
from wharf.cluster.api.handlers.jobs.specification import has_management_token
from wharf.cluster.api.handlers.run_lists import parse_run_sort, parse_run_state, select_runs, sort_runs
from wharf.cluster.api.lists.listing import Listing, list_by_namespace
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, MissingRecord, ReadHandler, get_creation_order
from wharf.cluster.operations.jobs import runs
from wharf.cluster.operations.jobs.backfill import BackfillRequest, list_slots
from wharf.cluster.operations.jobs.overlap import RunQueues, require_no_other_run
from wharf.cluster.operations.jobs.run_retry import RetryResult, RunRetry, plan_retry
from wharf.cluster.operations.jobs.runs import RunCancellation, RunResult
from wharf.cluster.operations.run_changes import MAX_ANSWER_BYTES
from wharf.cluster.operations.run_views import build_run_stub, build_run_view
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.rpc.handlers.flows import (
    ANSWER_GATE,
    CANCEL_RUN,
    LAUNCH_SLOT,
    RETRY_RUN,
    CancelRunRequest,
    LaunchSlotRequest,
    RetryRunRequest,
)
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica, Table
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    ARRAY_ATTEMPTS,
    ARRAY_RESULTS,
    ATTEMPTS_OF_JOB,
    CHILDREN_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOB_SUMMARIES,
    JOBS,
)
from wharf.cluster.state.watches import watch_index, watch_key
from wharf.contract.model.acl import permissions
from wharf.contract.model.jobs.job import ChildrenSummary, Job
from wharf.contract.model.jobs.run_views import FlowStub, RunStub
from wharf.contract.model.jobs.steps import MAX_STEPS
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.times import SECOND, to_datetime
from wharf.contract.wire.flows import (
    DEFAULT_BACKFILLED_RUNS,
    AnswerKind,
    BackfilledSlot,
    FlowBackfillRequest,
    FlowBackfillResponse,
    GateAnswerRequest,
    KeptStepView,
    RetriedStepView,
    RunCancelRequest,
    RunChangeResponse,
    RunRetryRequest,
    RunRetryResponse,
)

_RUN_TABLES: Final = (ALLOCATIONS, ARRAY_ATTEMPTS, ARRAY_RESULTS, EVALUATIONS)
_NO_CHILDREN: Final = ChildrenSummary()


def _is_flow(job: Job) -> bool:
    return job.has_steps and (job.is_periodic or job.is_parameterized)


def _is_run(job: Job) -> bool:
    return job.has_steps and not (job.is_periodic or job.is_parameterized)


def list_flows(replica: Replica, _request: Request, options: QueryOptions) -> Listing[Job]:
    """List flows with the numbers of their runs, and their newest runs."""
    return _list_selected(replica, options, _is_flow, lambda: partial(_build_flow_stub, replica), JOB_SUMMARIES)


def list_runs(replica: Replica, request: Request, options: QueryOptions) -> Listing[Job]:
    """List runs: all, those of one flow, or those in one state."""
    flow = request.get_text("flow")
    sort, state = parse_run_sort(request.get_text("sort")), parse_run_state(request.get_text("state"))
    if flow and not options.prefix:
        options = msgspec.structs.replace(options, prefix=f"{flow}/")  # The IDs of its runs begin with it.
    listing = _list_selected(
        replica,
        options,
        lambda job: _is_run(job) and job.parent_id == (flow or job.parent_id),
        lambda: partial(build_run_stub, replica, queues=RunQueues(replica)),
    )
    if state is not None:
        listing = select_runs(replica, listing, options, state)
    return listing if sort is None else sort_runs(replica, listing, options, sort)


def _list_selected(
    replica: Replica,
    options: QueryOptions,
    is_selected: Callable[[Job], bool],
    start_reading: Callable[[], Callable[[Job], object]],
    *more: Table[Any],
) -> Listing[Job]:
    """Return the listing of the jobs that the test selects. Their views are built in slices.

    `start_reading` is called once for each reply. It returns the function that builds the view of a job.
    """
    listing = list_by_namespace(
        replica, JOBS, options, *more, *_RUN_TABLES, prepare_view=partial(_prepare_views, start_reading)
    )
    return replace(listing, is_selected=lambda job: is_selected(job) and job.id.startswith(options.prefix))


async def _prepare_views(
    start_reading: Callable[[], Callable[[Job], object]], jobs: Sequence[Job], work: SlicedWork
) -> Callable[[Job], object]:
    """Build the views of jobs in slices. Return the function that returns the view of a job."""
    views = {}
    build_view = start_reading()
    work.restart()
    for job in jobs:
        if work.is_slice_over():
            await work.pause()
        views[job.namespace, job.id] = build_view(job)
    return lambda job: views[job.namespace, job.id]


def _build_flow_stub(replica: Replica, job: Job) -> FlowStub:
    summary = replica.get(JOB_SUMMARIES, job.namespace, job.id)
    children = (summary.children if summary is not None else None) or _NO_CHILDREN
    newest = max(replica.list_by_index(CHILDREN_OF_JOB, job.namespace, job.id), key=get_creation_order, default=None)
    latest: RunStub | None = None if newest is None else build_run_stub(replica, newest)
    return FlowStub(
        job_id=job.id,
        namespace=job.namespace,
        is_periodic=job.is_periodic,
        stop=job.stop,
        overlap=job.flow.overlap if job.flow is not None else "",
        step_count=len(job.groups),
        waiting=children.pending,
        running=children.running,
        ended=children.dead,
        latest=latest,
        create_index=job.create_index,
        modify_index=job.modify_index,
    )


def read_run(replica: Replica, request: Request, options: QueryOptions) -> ReadResult:
    """Return the steps of a run."""
    key = options.namespace, request.get_path_value("job_id")
    job = replica.get(JOBS, *key)
    indexes = (ALLOCATIONS_OF_JOB, ATTEMPTS_OF_JOB, EVALUATIONS_OF_JOB)
    watched = [watch_key(JOBS, *key), *(watch_index(each, *key) for each in indexes)]
    if job is None:
        return ReadResult(MissingRecord(JOB_NOT_FOUND_TEXT), replica.get_last_change(JOBS), watched)
    if not _is_run(job):
        raise invalid_request(describe_no_run(job))
    return ReadResult(
        build_run_view(replica, job), max(job.modify_index, replica.get_last_change(*_RUN_TABLES)), watched
    )


def describe_no_run(job: Job) -> str:
    """Return why a job is no run."""
    if _is_flow(job):
        return f'job "{job.id}" is a flow, not a run: its launches are runs; GET /v1/runs?flow={job.id} lists them'
    return f'job "{job.id}" has no steps: a run is a job with a group that has Depends or another field of steps'


class FlowActions:
    """Changes flows and runs. The leader decides."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def cancel_run(self, request: Request) -> ActionResult:
        """Cancel the run; a second time, stop its final steps too."""
        body = request.decode_body(RunCancelRequest) if request.body else RunCancelRequest()
        _require_short("Text", body.text)
        cancellation = RunCancellation(
            namespace=request.namespace,
            job_id=request.get_path_value("job_id"),
            actor=_describe_actor(request),
            detail=body.text,
            at_once=body.at_once,
            cause=request.id,
        )
        result = await self._server.leader.call(CANCEL_RUN, CancelRunRequest(cancellation, self._server.job_settings))
        return ActionResult(_build_change_response(result), result.index)

    async def answer_gate(self, request: Request) -> ActionResult:
        """Approve or reject the gate of a step of the run.

        A gate without a policy may be answered by everybody who may submit jobs in the namespace.
        """
        body = request.decode_body(GateAnswerRequest)
        if body.answer not in tuple(AnswerKind):
            raise invalid_request(f'Answer is "{body.answer}"; it must be one of {", ".join(AnswerKind)}')
        _require_short("Text", body.text)
        job_id = request.get_path_value("job_id")
        job = self._server.replica.get(JOBS, request.namespace, job_id)
        group = job.find_group(body.step) if job is not None else None
        if group is None or group.gate is None or not group.gate.policy:
            request.require_permission(permissions.REGISTER_JOB, namespace=request.namespace)
        answer = runs.GateAnswer(
            namespace=request.namespace,
            job_id=job_id,
            step=body.step,
            approve=body.answer == AnswerKind.APPROVE,
            text=body.text,
            deadline=body.deadline,
            actor=_describe_actor(request),
            policies=request.caller.policies,
            is_management=request.caller.kind in (CallerKind.MANAGEMENT, CallerKind.UNCHECKED),
            may_submit=request.has_permission(permissions.REGISTER_JOB, namespace=request.namespace),
            cause=request.id,
        )
        result = await self._server.leader.call(ANSWER_GATE, answer)
        return ActionResult(_build_change_response(result), result.index)

    async def retry_run(self, request: Request) -> ActionResult:
        """Run steps of the run again, or only return which ones would run."""
        body = request.decode_body(RunRetryRequest) if request.body else RunRetryRequest()
        request.require_permission(permissions.READ_JOB, namespace=request.namespace)  # The reply shows the steps.
        if len(body.steps) > MAX_STEPS:
            raise invalid_request(f"Steps has {len(body.steps)} names; a run has at most {MAX_STEPS} steps")
        retry = RunRetry(
            namespace=request.namespace,
            job_id=request.get_path_value("job_id"),
            steps=tuple(dict.fromkeys(body.steps)),
            is_management=has_management_token(request),
            may_start=request.has_permission(permissions.REGISTER_JOB, namespace=request.namespace),
            cause=request.id,
        )
        if body.plan:
            require_no_other_run(self._server.replica, retry.namespace, retry.job_id)
            plan = plan_retry(self._server.replica, retry)
            return ActionResult(_build_retry_response(RetryResult(0, plan)), self._server.replica.index)
        result = await self._server.leader.call(RETRY_RUN, RetryRunRequest(retry, self._server.job_settings))
        return ActionResult(_build_retry_response(result), result.index)

    async def backfill_flow(self, request: Request) -> ActionResult:
        """Launch the runs of past slots, one write each. A repeated request continues where the first one ended."""
        body = request.decode_body(FlowBackfillRequest)
        if body.begin is None or body.end is None:
            raise invalid_request("From and To must both be set, to times such as 2026-11-20T03:00:00Z")
        if body.begin.tzinfo is None or body.end.tzinfo is None:
            raise invalid_request("From and To need a time zone, such as the Z in 2026-11-20T03:00:00Z")
        backfill = BackfillRequest(
            namespace=request.namespace,
            job_id=request.get_path_value("job_id"),
            begin=body.begin,
            end=body.end,
            max_runs=body.max or DEFAULT_BACKFILLED_RUNS,
            again=body.again,
            is_management=has_management_token(request),
            cause=request.id,
        )
        slots = list_slots(self._server.replica, backfill, self._server.world.now_ns())
        missing = [slot for slot in slots if not slot.exists]
        created = {slot.job_id for slot in missing}
        index = 0
        for slot in () if body.plan else missing:
            launch = LaunchSlotRequest(backfill, slot, self._server.job_settings)
            result = await self._server.leader.call(LAUNCH_SLOT, launch)
            index = max(index, result.index)
            if not result.eval_id:
                created.discard(slot.job_id)  # Another request has created it since.
        reply = FlowBackfillResponse(
            slots=tuple(
                BackfilledSlot(
                    time=to_datetime(each.launch_s * SECOND), job_id=each.job_id, exists=each.job_id not in created
                )
                for each in slots
            ),
            created=len(created),
            index=index,
        )
        return ActionResult(reply, index or self._server.replica.index)


def _require_short(field: str, text: str) -> None:
    """Raise unless a text that is stored with a run is short."""
    if len(text.encode()) > MAX_ANSWER_BYTES:
        raise invalid_request(f"{field} must be at most {MAX_ANSWER_BYTES} bytes long")


def _describe_actor(request: Request) -> str:
    """Return who sends the request, as users know them: the name of the token, or its accessor ID; of a task its job."""
    token, claims = request.caller.token, request.caller.claims
    if token is not None:
        return token.name or token.accessor_id
    if claims is None:
        return "anonymous"
    task = f"the task {claims.task} of " if claims.task else ""
    return f"{task}the job {claims.job_id}"


def _build_change_response(result: RunResult) -> RunChangeResponse:
    return RunChangeResponse(
        eval_id=result.eval_id,
        eval_create_index=result.eval_create_index,
        is_stopped=result.is_stopped,
        index=result.index,
    )


def _build_retry_response(result: RetryResult) -> RunRetryResponse:
    return RunRetryResponse(
        steps=tuple(
            RetriedStepView(name=each.name, reason=each.reason, element_count=each.element_count, size=each.size)
            for each in result.plan.steps
        ),
        kept_steps=tuple(
            KeptStepView(name=each.name, reason=each.reason, outcome=each.outcome) for each in result.plan.other_steps
        ),
        attempt=result.attempt,
        eval_id=result.eval_id,
        eval_create_index=result.eval_create_index,
        job_modify_index=result.job_modify_index,
        index=result.index,
    )


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = FlowActions(server)
    return {
        "flow.cancel": actions.cancel_run,
        "flow.answer": actions.answer_gate,
        "flow.retry": actions.retry_run,
        "flow.backfill": actions.backfill_flow,
    }


READ_HANDLERS: Final[dict[str, ReadHandler]] = {"flow.list": list_flows, "flow.runs": list_runs, "flow.run": read_run}
