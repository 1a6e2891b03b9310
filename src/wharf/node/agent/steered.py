"""What people have a node do with its allocations: restart tasks, send them signals, free what ended ones hold."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from wharf.model.refusal import Code, Refusal, invalid, unknown
from wharf.node.agent.asked import JSON, Answer
from wharf.node.agent.channel import Reply
from wharf.node.agent.works import Work, Works
from wharf.node.core import happenings as on
from wharf.node.drivers.supervised import is_signal
from wharf.wire import channel
from wharf.wire.client_shapes import AllocPauseState, AllocRestartRequest, AllocSignalRequest, IndexResponse

RESTART_RUNNING: Final = "User requested running tasks to restart"
RESTART_ALL: Final = "User requested all tasks to restart"
RESTART_ONE: Final = "User requested task to restart"
DONE: Final = Reply(JSON, msgspec.json.encode(IndexResponse()))

ChecksOf = Callable[[str], Awaitable[Mapping[str, Any]]]
"""The results of an allocation's checks, by the id of each."""


async def no_checks(_allocation: str) -> Mapping[str, Any]:
    return {}


def found(works: Works, allocation_id: str) -> Work:
    work = works.find(allocation_id)
    if work is None:
        raise unknown(f'Unknown allocation "{allocation_id}"')
    return work


def check_task(work: Work, task: str) -> None:
    names = [each.name for each in work.record.tasks]
    if not names:  # Of one that has ended, and is remembered without its orders.
        raise invalid(f'task "{task}" does not run')
    if task not in names:
        raise invalid(f'unknown task name "{task}"')


class Steered:
    def __init__(self, works: Works, checks_of: ChecksOf = no_checks) -> None:
        self._works = works
        self._checks_of = checks_of

    def answers(self) -> dict[str, Answer]:
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
        check_task(work, task)
        return work.record.task(task).is_dead

    def has_begun(self, allocation_id: str, task: str) -> bool:
        """Whether it ran at some time, as far as is known. Raises Refusal."""
        work = self._works.find(allocation_id)
        if work is None or not work.record.tasks:
            return False
        check_task(work, task)
        return work.record.task(task).has_started

    def tasks_if_over(self, allocation_id: str) -> tuple[str, ...] | None:
        """Of an allocation that has ended; None: it has not. Raises Refusal."""
        work = found(self._works, allocation_id)
        return tuple(task.name for task in work.record.tasks) if work.record.is_over else None

    async def _restart(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        work = found(self._works, question.about)
        asked = _read(question, AllocRestartRequest)
        if work.record.is_to_stop or work.record.is_over:
            raise invalid("restart of an alloc that should not run")
        if asked.task_name:
            check_task(work, asked.task_name)
            if not work.record.task(asked.task_name).has_process:
                raise invalid(f'task "{asked.task_name}" does not run')
            event = on.RestartAsked((asked.task_name,), reason=RESTART_ONE)
        else:
            event = on.RestartAsked(is_all=asked.all_tasks, reason=RESTART_ALL if asked.all_tasks else RESTART_RUNNING)
        self._works.happen(question.about, event)
        return DONE

    async def _signal(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        work = found(self._works, question.about)
        asked = _read(question, AllocSignalRequest)
        if asked.task:
            check_task(work, asked.task)
        if not is_signal(asked.signal):
            raise invalid(f'"{asked.signal}" is no signal of the node\'s machine: name one, such as SIGHUP')
        running = [task.name for task in work.record.tasks if task.has_process]
        if not running or (asked.task and asked.task not in running):
            raise invalid(f'task "{asked.task}" does not run' if asked.task else "none of its tasks runs")
        self._works.happen(question.about, on.SignalAsked(asked.signal, (asked.task,) if asked.task else ()))
        return DONE

    async def _pause_state(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        found(self._works, question.about)
        return Reply(JSON, msgspec.json.encode(AllocPauseState()))

    async def _pause(self, _question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        raise Refusal(Code.NOT_OURS, "tasks cannot be paused by a schedule here: stop the job, or scale its group to 0")

    async def _checks(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        found(self._works, question.about)
        return Reply(JSON, msgspec.json.encode(await self._checks_of(question.about)))

    async def _collect_all(self, _question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        for id in self._works.ended():
            self._works.remove_files(id)
        return Reply(JSON)

    async def _collect(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        work = found(self._works, question.about)
        if not work.record.is_over:
            raise invalid("No such allocation on client, or allocation not eligible for GC: it has not ended")
        self._works.remove_files(question.about)
        return Reply(JSON)


def _read(question: channel.Ask, kind: Any) -> Any:  # A struct of `client_shapes`, and one of that kind.
    try:
        return msgspec.json.decode(question.body or b"{}", type=kind)
    except msgspec.MsgspecError as error:
        raise invalid(f"the body cannot be read: {error}") from None
