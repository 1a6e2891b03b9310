"""Other people's code within the node's agent: found by an entry point, and asked so that its faults stay its own."""

import asyncio
from collections.abc import Coroutine
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, TypeVar

from wharf.world import World

T = TypeVar("T")

CALL_TIMEOUT_S: Final = 10.0


class PluginError(Exception):
    """What a plugin did instead of answering."""


def list_entry_points(group: str) -> list[EntryPoint]:
    return sorted(entry_points(group=group), key=lambda each: each.name)


async def call_plugin(
    world: World,
    call: Coroutine[Any, Any, T],
    *,
    timeout_s: float | None = CALL_TIMEOUT_S,
    expected_errors: tuple[type[Exception], ...] = (),
) -> T:
    """In a task of its own: what comes out of a plugin is no error of ours. Raises PluginFailed, and `sentences`, by which
    it may refuse."""
    task = world.start_task(call, name="a plugin")
    try:
        done, _ = await asyncio.wait([task], timeout=timeout_s)
    finally:
        task.cancel()
    if not done:
        raise PluginError(f"it did not answer within {timeout_s:g} s")
    error = None if task.cancelled() else task.exception()
    if isinstance(error, expected_errors):
        raise error
    if task.cancelled() or error is not None:
        raise PluginError(f"{type(error).__name__}: {error}" if error is not None else "it gave up")
    return task.result()
