"""What people have a node do with its allocations: restart tasks, send them signals, free what ended ones hold."""

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
from wharf.node.agent.allocations.manager import AllocationManager, ManagedAllocation
from wharf.node.channel.endpoint import ChannelReply
from wharf.node.channel.files import JSON_CONTENT_TYPE, VerbHandler
from wharf.node.core import events as on
from wharf.node.drivers.supervised import is_signal

RESTART_RUNNING_REASON: Final = "User requested running tasks to restart"
RESTART_ALL_REASON: Final = "User requested all tasks to restart"
RESTART_ONE_REASON: Final = "User requested task to restart"
DONE_REPLY: Final = ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode(IndexResponse()))

CheckResultsLookup = Callable[[str], Awaitable[Mapping[str, Any]]]
"""The results of an allocation's checks, by the id of each."""


async def return_no_checks(_allocation: str) -> Mapping[str, Any]:
    return {}


def require_allocation(works: AllocationManager, allocation_id: str) -> ManagedAllocation:
    work = works.find(allocation_id)
    if work is None:
        raise not_found(f'Unknown allocation "{allocation_id}"')
    return work


def require_task(work: ManagedAllocation, task: str) -> None:
    names = [each.name for each in work.record.tasks]
    if not names:  # Of one that has ended, and is remembered without its orders.
        raise invalid_request(f'task "{task}" does not run')
    if task not in names:
        raise invalid_request(f'unknown task name "{task}"')


class AllocationHandlers:
    def __init__(self, works: AllocationManager, checks_of: CheckResultsLookup = return_no_checks) -> None:
        self._works = works
        self._checks_of = checks_of

    def handlers(self) -> dict[str, VerbHandler]:
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
        """Whether the task will write no more. Raises Refusal."""
        work = self._works.find(allocation_id)
        if work is None or not work.record.tasks:
            return True  # Only its files are left, if they are.
        require_task(work, task)
        return work.record.task(task).is_dead

    def has_started(self, allocation_id: str, task: str) -> bool:
        """Whether it ran at some time, as far as is known. Raises Refusal."""
        work = self._works.find(allocation_id)
        if work is None or not work.record.tasks:
            return False
        require_task(work, task)
        return work.record.task(task).has_started

    def list_ended_tasks(self, allocation_id: str) -> tuple[str, ...] | None:
        """Of an allocation that has ended; None: it has not. Raises Refusal."""
        work = require_allocation(self._works, allocation_id)
        return tuple(task.name for task in work.record.tasks) if work.record.is_over else None

    async def _restart(self, question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        work = require_allocation(self._works, question.about)
        asked = _read(question, AllocRestartRequest)
        if work.record.is_to_stop or work.record.is_over:
            raise invalid_request("restart of an alloc that should not run")
        if asked.task_name:
            require_task(work, asked.task_name)
            if not work.record.task(asked.task_name).has_process:
                raise invalid_request(f'task "{asked.task_name}" does not run')
            event = on.RestartRequested((asked.task_name,), reason=RESTART_ONE_REASON)
        else:
            event = on.RestartRequested(
                is_including_dead_tasks=asked.all_tasks,
                reason=RESTART_ALL_REASON if asked.all_tasks else RESTART_RUNNING_REASON,
            )
        self._works.handle_event(question.about, event)
        return DONE_REPLY

    async def _signal(self, question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        work = require_allocation(self._works, question.about)
        asked = _read(question, AllocSignalRequest)
        if asked.task:
            require_task(work, asked.task)
        if not is_signal(asked.signal):
            raise invalid_request(f'"{asked.signal}" is no signal of the node\'s machine: name one, such as SIGHUP')
        running = [task.name for task in work.record.tasks if task.has_process]
        if not running or (asked.task and asked.task not in running):
            raise invalid_request(f'task "{asked.task}" does not run' if asked.task else "none of its tasks runs")
        self._works.handle_event(question.about, on.SignalRequested(asked.signal, (asked.task,) if asked.task else ()))
        return DONE_REPLY

    async def _pause_state(self, question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        require_allocation(self._works, question.about)
        return ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode(AllocPauseState()))

    async def _pause(self, _question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        raise Refusal(
            RefusalCode.NOT_IMPLEMENTED,
            "tasks cannot be paused by a schedule here: stop the job, or scale its group to 0",
        )

    async def _checks(self, question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        require_allocation(self._works, question.about)
        return ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode(await self._checks_of(question.about)))

    async def _collect_all(self, _question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        for id in self._works.list_ended():
            self._works.remove_files(id)
        return ChannelReply(JSON_CONTENT_TYPE)

    async def _collect(self, question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        work = require_allocation(self._works, question.about)
        if not work.record.is_over:
            raise invalid_request("No such allocation on client, or allocation not eligible for GC: it has not ended")
        self._works.remove_files(question.about)
        return ChannelReply(JSON_CONTENT_TYPE)


def _read(question: channel.ChannelRequest, kind: Any) -> Any:  # A struct of `client_shapes`, and one of that kind.
    try:
        return msgspec.json.decode(question.body or b"{}", type=kind)
    except msgspec.MsgspecError as error:
        raise invalid_request(f"the body cannot be read: {error}") from None
