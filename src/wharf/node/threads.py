"""Threads for blocking work of the node, in groups that cannot delay each other.

The event loop's own threads are shared by all that an agent does. Files on a hanging file system, or archives of a task,
could occupy all of them, and then no other task could start or stop.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

P = ParamSpec("P")
T = TypeVar("T")


class ThreadGroup(StrEnum):
    """What the threads of a group work for."""

    ARTIFACTS = "artifacts"
    """Files and archives that tasks download."""
    MIGRATION = "migration"
    """Data of predecessors on other nodes."""
    VOLUMES = "volumes"
    """Volumes, which may be on a file system of another machine."""
    IMAGES = "images"
    """Archives of images, which are on the node."""
    DISKS = "disks"
    """The free space of the node's disks."""
    SEARCH = "search"
    """What other nodes have left on the machine."""


MAX_THREADS: Final = {
    ThreadGroup.ARTIFACTS: 8,
    ThreadGroup.MIGRATION: 4,
    ThreadGroup.VOLUMES: 4,
    ThreadGroup.IMAGES: 2,
    ThreadGroup.DISKS: 1,
    ThreadGroup.SEARCH: 1,
}
"""How many functions of a group run at a time; more wait. Limits the memory of threads."""
MAX_THREADS_OF_OWNER: Final = 2
"""How many functions of one owner, such as an allocation, a group runs at a time. The rest of the threads is for others."""
_groups_by_loop: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ThreadGroup, ThreadPoolExecutor]]] = (
    WeakKeyDictionary()
)


_permits_by_loop: Final[
    WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[tuple[ThreadGroup, str], asyncio.Semaphore]]
] = WeakKeyDictionary()
"""The permits of the owners that use threads now, by group and owner."""


async def run_in_thread(group: ThreadGroup, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function on a thread of a group and return its result. A running function cannot be canceled."""
    return await asyncio.wrap_future(_find_threads(group).submit(partial(function, *args, **kwargs)))


async def run_in_owned_thread(
    group: ThreadGroup, owner: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run a function on a thread of a group for an owner and return its result.

    Only `MAX_THREADS_OF_OWNER` functions of an owner run or wait for a thread at a time, so that no owner can occupy all
    threads of the group. A function counts until it has ended, also if its caller was canceled.
    """
    loop = asyncio.get_running_loop()
    permits = _permits_by_loop.setdefault(loop, WeakValueDictionary())
    permit = permits.get((group, owner))
    if permit is None:
        permit = permits[group, owner] = asyncio.Semaphore(MAX_THREADS_OF_OWNER)
    await permit.acquire()
    try:
        running = _find_threads(group).submit(partial(function, *args, **kwargs))
    except BaseException:
        permit.release()
        raise
    running.add_done_callback(lambda _: _call_in_loop(loop, permit.release))
    return await asyncio.wrap_future(running)


def _find_threads(group: ThreadGroup) -> ThreadPoolExecutor:
    """Return the threads of a group for the running event loop; they are created on first use."""
    groups = _groups_by_loop.setdefault(asyncio.get_running_loop(), {})
    if group not in groups:
        groups[group] = ThreadPoolExecutor(MAX_THREADS[group], thread_name_prefix=group)
    return groups[group]


def _call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Have the event loop call a function, from any thread. Does nothing if the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
