"""Handles requests about allocations: restart tasks, send signals, show checks, remove files of ended allocations."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found
from wharf.contract.wire.allocations.messages import (
    AllocPauseState,
    AllocRestartRequest,
    AllocSignalRequest,
    IndexResponse,
)
from wharf.contract.wire.nodes import channel
from wharf.node.agent.allocations.allocation import ManagedAllocation
from wharf.node.agent.allocations.ended_files import EndedAllocationFiles
from wharf.node.agent.allocations.manager import AllocationManager
from wharf.node.agent.allocations.table import AllocationTable
from wharf.node.channel.endpoint import JSON_CONTENT_TYPE, ChannelReply, VerbHandler
from wharf.node.core import events
from wharf.node.drivers.supervised import is_signal

RESTART_RUNNING_REASON: Final = "User requested running tasks to restart"
RESTART_ALL_REASON: Final = "User requested all tasks to restart"
RESTART_ONE_REASON: Final = "User requested task to restart"
DONE_REPLY: Final = ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode(IndexResponse()))
"""The reply of a request that changed something."""

CheckResultsLookup = Callable[[str], Awaitable[Mapping[str, Any]]]
"""Returns the results of an allocation's checks, by check id."""


async def return_no_checks(_allocation: str) -> Mapping[str, Any]:
    """Return no check results; used by nodes that run no checks."""
    return {}


def require_allocation(table: AllocationTable, allocation_id: str) -> ManagedAllocation:
    """Return the allocation. Raises `Refusal` if it is unknown."""
    allocation = table.find(allocation_id)
    if allocation is None:
        raise not_found(f'Unknown allocation "{allocation_id}"')
    return allocation


def require_task(allocation: ManagedAllocation, task: str) -> None:
    """Check that the allocation has a task with this name. Raises `Refusal` otherwise."""
    names = [task_record.name for task_record in allocation.record.tasks]
    if not names:  # The allocation is over, and the records of its tasks were deleted.
        raise invalid_request(f'task "{task}" is not running')
    if task not in names:
        raise invalid_request(f'unknown task name "{task}"')


class NodeAllocationHandlers:
    """Handles requests about allocations: restarts, signals, checks and garbage collection."""

    def __init__(
        self,
        manager: AllocationManager,
        files: EndedAllocationFiles,
        find_check_results: CheckResultsLookup = return_no_checks,
    ) -> None:
        self._manager = manager
        self._table = manager.table
        self._files = files
        self._find_check_results = find_check_results

    def handlers(self) -> dict[str, VerbHandler]:
        """Return the handlers of requests about allocations, by verb of the node channel."""
        return {
            "restart": self._restart,
            "signal": self._signal,
            "pause_state": self._pause_state,
            "pause": self._pause,
            "checks": self._checks,
            "checks_by_allocation": self._checks,
            "gc": self._collect_all,
            "gc_now": self._collect_all,
            "alloc_gc": self._collect,
            "alloc_gc_now": self._collect,
        }

    def is_over(self, allocation_id: str, task: str) -> bool:
        """Return whether the task will write no more output; `True` for an unknown allocation.

        Raises `Refusal` for an unknown task.
        """
        allocation = self._table.find(allocation_id)
        if allocation is None or not allocation.record.tasks:
            return True  # Only its files may be left.
        require_task(allocation, task)
        return allocation.record.task(task).is_dead

    def has_started(self, allocation_id: str, task: str) -> bool:
        """Return whether the node knows that the task has run; `False` for an unknown allocation.

        Raises `Refusal` for an unknown task.
        """
        allocation = self._table.find(allocation_id)
        if allocation is None or not allocation.record.tasks:
            return False
        require_task(allocation, task)
        return allocation.record.task(task).has_started

    def list_ended_tasks(self, allocation_id: str) -> tuple[str, ...] | None:
        """Return the names of the tasks of an allocation that has ended; `None` if it has not ended.

        Raises `Refusal` if it is unknown.
        """
        allocation = require_allocation(self._table, allocation_id)
        return tuple(task.name for task in allocation.record.tasks) if allocation.record.is_over else None

    async def _restart(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Request the restart of one task, of all running tasks or of all tasks.

        Raises `Refusal` if the allocation must not run or the task is unknown or not running.
        """
        allocation = require_allocation(self._table, request.about)
        body = _decode_body(request, AllocRestartRequest)
        if allocation.record.is_to_stop or allocation.record.is_over:
            raise invalid_request("restart of an alloc that should not run")
        if body.task_name:
            require_task(allocation, body.task_name)
            if not allocation.record.task(body.task_name).has_process:
                raise invalid_request(f'task "{body.task_name}" is not running')
            event = events.RestartRequested((body.task_name,), reason=RESTART_ONE_REASON)
        else:
            event = events.RestartRequested(
                is_including_dead_tasks=body.all_tasks,
                reason=RESTART_ALL_REASON if body.all_tasks else RESTART_RUNNING_REASON,
            )
        self._manager.handle_event(request.about, event)
        return DONE_REPLY

    async def _signal(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Request a signal to one task or to all running tasks.

        Raises `Refusal` if the signal or the task is unknown, or no such task is running.
        """
        allocation = require_allocation(self._table, request.about)
        body = _decode_body(request, AllocSignalRequest)
        if body.task:
            require_task(allocation, body.task)
        if not is_signal(body.signal):
            raise invalid_request(f'unknown signal "{body.signal}": use a name such as SIGHUP')
        running = [task.name for task in allocation.record.tasks if task.has_process]
        if not running or (body.task and body.task not in running):
            raise invalid_request(
                f'task "{body.task}" is not running' if body.task else "no task of the allocation is running"
            )
        self._manager.handle_event(
            request.about, events.SignalRequested(body.signal, (body.task,) if body.task else ())
        )
        return DONE_REPLY

    async def _pause_state(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Return that the task is not paused by a schedule; task schedules are not supported."""
        require_allocation(self._table, request.about)
        return ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode(AllocPauseState()))

    async def _pause(self, _request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Refuse the request, because pausing tasks by schedule is not supported."""
        raise Refusal(
            RefusalCode.NOT_IMPLEMENTED,
            "pausing tasks by schedule is not supported. Stop the job or scale its group to 0",
        )

    async def _checks(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Return the results of the allocation's checks as JSON. Raises `Refusal` if the allocation is unknown."""
        require_allocation(self._table, request.about)
        return ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode(await self._find_check_results(request.about)))

    async def _collect_all(self, _request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Remove the files of all allocations that have ended."""
        for id in self._table.list_ended():
            self._files.remove_files(id)
        return ChannelReply(JSON_CONTENT_TYPE)

    async def _collect(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Remove the files of one allocation. Raises `Refusal` if it is unknown or not over."""
        allocation = require_allocation(self._table, request.about)
        if not allocation.record.is_over:
            raise invalid_request("No such allocation on client, or allocation not eligible for GC: it has not ended")
        self._files.remove_files(request.about)
        return ChannelReply(JSON_CONTENT_TYPE)


def _decode_body(
    request: channel.ChannelRequest, message_type: Any
) -> Any:  # `Any`: a message type, and an instance of it.
    """Return the body of the request, decoded as `message_type`. Raises `Refusal` if it is invalid."""
    try:
        return msgspec.json.decode(request.body or b"{}", type=message_type)
    except msgspec.MsgspecError as error:
        raise invalid_request(f"invalid request body: {error}") from None
