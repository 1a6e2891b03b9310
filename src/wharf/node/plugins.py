"""Finds third-party plugins by entry point, and calls them so that their errors cannot break the node agent."""

import asyncio
from collections.abc import Callable, Coroutine
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, TypeVar

from wharf.world import World

T = TypeVar("T")

CALL_TIMEOUT_S: Final = 10.0
"""Seconds that a plugin may take for one call before the call counts as failed."""

NodeEventReporter = Callable[..., None]
"""Called with a message and keyword details; records an event of the node."""


class PluginError(Exception):
    """The error of a plugin call that raised an unexpected exception, canceled itself or timed out."""


def list_entry_points(group: str) -> list[EntryPoint]:
    """Return the installed entry points of a group, such as `wharf.devices`, sorted by name."""
    return sorted(entry_points(group=group), key=lambda entry_point: entry_point.name)


async def call_plugin(
    world: World,
    call: Coroutine[Any, Any, T],
    *,
    timeout_s: float | None = CALL_TIMEOUT_S,
    expected_errors: tuple[type[Exception], ...] = (),
) -> T:
    """Run a plugin's coroutine in its own asyncio task and return its result.

    Exceptions of the types in `expected_errors` are passed on. Every other failure, including a timeout and
    cancellation by the plugin itself, raises `PluginError`. `timeout_s` of None sets no limit.
    """
    task = world.start_task(call, name="plugin call")
    try:
        done, _ = await asyncio.wait([task], timeout=timeout_s)
    finally:
        task.cancel()
    if not done:
        raise PluginError(f"no reply within {timeout_s:g} s")
    error = None if task.cancelled() else task.exception()
    if isinstance(error, expected_errors):
        raise error
    if task.cancelled() or error is not None:
        raise PluginError(
            f"{type(error).__name__}: {error}" if error is not None else "the plugin canceled its own call"
        )
    return task.result()
