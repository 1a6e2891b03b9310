"""Threads for blocking work of the node, in groups that cannot delay each other.

The event loop's own threads are shared by all that an agent does. Files on a hanging file system, or archives of a task,
could occupy all of them, and then no other task could start or stop.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from functools import partial
from typing import Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

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
_groups_by_loop: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ThreadGroup, ThreadPoolExecutor]]] = (
    WeakKeyDictionary()
)


async def run_in_thread(group: ThreadGroup, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function on a thread of a group and return its result. A running function cannot be canceled."""
    loop = asyncio.get_running_loop()
    groups = _groups_by_loop.setdefault(loop, {})
    if group not in groups:
        groups[group] = ThreadPoolExecutor(MAX_THREADS[group], thread_name_prefix=group)
    return await loop.run_in_executor(groups[group], partial(function, *args, **kwargs))
