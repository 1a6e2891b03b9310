"""Endpoints that control an allocation and its tasks: stop, restart, signal, pause, statistics, garbage collection."""

from typing import Final

from wharf.cluster.api.handlers.allocations.node_calls import NodeCaller, check_task
from wharf.cluster.api.handlers.allocations.records import LOOKUP_ERROR_PREFIX
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.requests.values import parse_uuid
from wharf.cluster.api.results import ActionHandler, ActionResult, require_record
from wharf.cluster.server.rpc.handlers.allocations import STOP_ALLOCATION, StopAllocationRequest
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import ALLOCATIONS
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.body_limits import cut_echo
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire.allocations.messages import (
    AllocationStopResponse,
    AllocPauseRequest,
    AllocRestartRequest,
    AllocSignalRequest,
)

SCHEDULE_STATES: Final = ("pause", "run", "scheduled")


class AllocationControlActions:
    """Controls allocations: the leader stops them; everything else is executed by the allocation's node."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._nodes = NodeCaller(server)

    async def stop_allocation(self, request: Request) -> ActionResult:
        """Stop the allocation, and return the id of the evaluation that will replace it."""
        allocation_id = parse_uuid(request.get_path_value("alloc_id"), error_prefix=LOOKUP_ERROR_PREFIX)
        allocation = await require_record(
            self._server, ALLOCATIONS, allocation_id, not_found_text="allocation not found"
        )
        request.require_permission(namespace=allocation.namespace)
        stop = StopAllocationRequest(
            allocation_id,
            no_shutdown_delay=request.get_flag("no_shutdown_delay"),
            reschedule=request.get_flag("reschedule"),
            cause=request.id,
        )
        result = await self._server.leader.call(STOP_ALLOCATION, stop)
        return ActionResult(AllocationStopResponse(eval_id=result.eval_id, index=result.index), result.index)

    async def call_node(self, request: Request) -> ActionResult:
        """Have the node of the allocation execute a request that needs no checks of its body, such as reading
        statistics.
        """
        return await self._nodes.call_allocation_node(request)

    async def restart_allocation(self, request: Request) -> ActionResult:
        """Restart one task or all tasks. Raises `Refusal` if the allocation should not run."""
        body = request.decode_body(AllocRestartRequest) if request.body else AllocRestartRequest()
        if body.task_name and body.all_tasks:
            raise invalid_request("restart one task or all of them: TaskName and AllTasks cannot both be set")

        def check(allocation: Allocation, job: Job | None) -> None:
            if allocation.is_terminal:
                raise invalid_request("restart of an alloc that should not run")
            check_task(allocation, job, body.task_name)

        return await self._nodes.call_allocation_node(request, check)

    async def signal_task(self, request: Request) -> ActionResult:
        """Send a signal to one task or to all tasks of the allocation."""
        body = request.decode_body(AllocSignalRequest)
        if not body.signal:
            raise invalid_request("missing signal: name one, such as SIGHUP")
        return await self._nodes.call_allocation_node(
            request, lambda allocation, job: check_task(allocation, job, body.task)
        )

    async def set_schedule_state(self, request: Request) -> ActionResult:
        """Pause or run a task regardless of its time schedule, or return it to the schedule."""
        body = request.decode_body(AllocPauseRequest)
        if body.schedule_state not in SCHEDULE_STATES:
            raise invalid_request(
                f"invalid schedule state {cut_echo(body.schedule_state)!r}: use one of {', '.join(SCHEDULE_STATES)}"
            )
        return await self._nodes.call_allocation_node(
            request, lambda allocation, job: check_task(allocation, job, body.task)
        )


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = AllocationControlActions(server)
    return {
        "allocation.stop": actions.stop_allocation,
        "client.restart": actions.restart_allocation,
        "client.signal": actions.signal_task,
        "client.pause": actions.set_schedule_state,
        "client.pause_state": actions.call_node,
        "client.alloc_stats": actions.call_node,
        "client.checks": actions.call_node,
        "client.checks_by_allocation": actions.call_node,
        "client.alloc_gc": actions.call_node,
        "client.alloc_gc_now": actions.call_node,
    }
