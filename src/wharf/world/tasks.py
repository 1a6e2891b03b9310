"""Running several coroutines until the first of them ends, cancelling tasks, and waiting for an event with a timeout.

Also the start of background tasks, which nobody awaits, so that none of them fails without a message.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final

from wharf.world import World

log = logging.getLogger(__name__)

CANCEL_INTERVAL_S: Final = 1.0
"""Seconds after which a task that has not ended is cancelled again."""


def start_supervised(
    world: World,
    coroutine: Coroutine[Any, Any, Any],
    *,
    name: str,
    on_failure: Callable[[Exception], None] | None = None,
) -> asyncio.Task[Any]:
    """Start a background task that nobody awaits, and return it. An unexpected exception is logged at once.

    Without this, nobody sees the exception of a task that is still referenced. `on_failure` is called with the
    exception, such as to show in the events of a task what no longer works.
    """
    task = world.start_task(coroutine, name=name)
    task.add_done_callback(partial(_report_failure, on_failure))
    return task


def _report_failure(on_failure: Callable[[Exception], None] | None, task: asyncio.Task[Any]) -> None:
    """Log the exception of an ended task, if it raised one, and call `on_failure` with it."""
    if task.cancelled() or (error := task.exception()) is None:
        return
    log.error("background task failed: unexpected error task=%s", task.get_name(), exc_info=error)
    if on_failure is not None and isinstance(error, Exception):
        on_failure(error)


async def run_until_first(world: World, **coroutines: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Run coroutines concurrently and cancel the others when the first ends. Keyword names become task names.

    Returns the tasks, all of which have ended, even if this call is cancelled. `cancelled()` is true for those that were
    cancelled.
    """
    tasks = [world.start_task(coroutine, name=name) for name, coroutine in coroutines.items()]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _cancel_until_ended(tasks)
    return tasks


async def cancel_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until all of them have ended.

    A library may swallow a cancellation, for example if it arrives during a timeout of its own. A task that goes on is
    therefore cancelled again, so that it cannot block the shutdown.

    A task that raises an exception while it is cancelled is logged, because nobody else reads that exception. One that
    failed before is left to its owner; asyncio logs it if the owner does not read it either.

    If the caller's coroutine is closed, because its event loop has ended, the tasks are only cancelled.
    """
    running = [task for task in tasks if not task.done()]
    await _cancel_until_ended(running)
    for task in running:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            log.error("canceled task failed: unexpected error task=%s", task.get_name(), exc_info=error)


async def _cancel_until_ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks, again after every `CANCEL_INTERVAL_S`, until all of them have ended."""
    remaining = [task for task in tasks if not task.done()]
    if _is_caller_closing():
        _request_cancellation(remaining)
        return
    while remaining:
        _request_cancellation(remaining)
        _, unfinished = await asyncio.wait(remaining, timeout=CANCEL_INTERVAL_S)
        remaining = [task for task in remaining if task in unfinished]


def _is_caller_closing() -> bool:
    """Return whether a coroutine that is being closed calls this while it cleans up. It may not wait for anything."""
    return isinstance(sys.exception(), GeneratorExit)


def _request_cancellation(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks without waiting for them."""
    for task in tasks:
        task.cancel()


async def wait_for_event(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait until the event is set, or `timeout_s` has passed (`None` and infinity: no limit). Return whether it is set."""
    try:
        async with asyncio.timeout(None if timeout_s == float("inf") else timeout_s):
            await event.wait()
    except TimeoutError:
        pass
    return event.is_set()
