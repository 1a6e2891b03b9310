"""Threads for blocking work of the node, in groups that cannot delay each other.

The event loop's own threads are shared by all that an agent does. Files on a hanging file system, or archives of a task,
could occupy all of them, and then no other task could start or stop.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from functools import partial
from typing import Any, Final, Generic, NamedTuple, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from wharf.node.fair_queue import FairQueue, ItemOwner, Level

P = ParamSpec("P")
T = TypeVar("T")


class ThreadGroup(StrEnum):
    """What the threads of a group work for."""

    ARTIFACTS = "artifacts"
    """Files and repositories of tasks: copies, which may take minutes."""
    DOWNLOADS = "downloads"
    """Parts of files that tasks download; each is written in a moment."""
    SCRATCH = "scratch"
    """The deletion of scratch folders of downloads."""
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
    LOG_SEARCH = "log-search"
    """Searches in the logs of tasks."""


MAX_THREADS: Final = {
    ThreadGroup.ARTIFACTS: 8,
    ThreadGroup.DOWNLOADS: 4,
    ThreadGroup.SCRATCH: 2,
    ThreadGroup.MIGRATION: 4,
    ThreadGroup.VOLUMES: 4,
    ThreadGroup.IMAGES: 2,
    ThreadGroup.DISKS: 1,
    ThreadGroup.SEARCH: 1,
    ThreadGroup.LOG_SEARCH: 2,
}
"""How many functions of a group run at a time; more wait. Limits the memory of threads."""
MAX_WAITING: Final = 8_192
"""How many functions of a group wait for a thread; limits their memory."""
OWNED_LEVELS: Final = {
    ThreadGroup.ARTIFACTS: (Level(8, MAX_WAITING), Level(6, 2_048), Level(3, 1_024), Level(2, 128)),
    ThreadGroup.MIGRATION: (Level(3, MAX_WAITING), Level(2, 2_048), Level(2, 1_024), Level(1, 128)),
    ThreadGroup.DOWNLOADS: (Level(4, MAX_WAITING), Level(3, 2_048), Level(2, 1_024), Level(1, 128)),
}
"""How many functions with an owner run and wait in all, and of one namespace, job and allocation. The rest of the threads is for
others, and for functions without an owner.
"""
END_WAIT_S: Final = 5.0
"""How long a canceled caller waits for the end of its function, which checks at least once a second whether to stop. A
hanging disk can delay the end."""
_groups_by_loop: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ThreadGroup, ThreadPoolExecutor]]] = (
    WeakKeyDictionary()
)


async def run_in_thread(group: ThreadGroup, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function on a thread of a group and return its result. A running function cannot be canceled."""
    return await asyncio.wrap_future(_find_threads(group).submit(partial(function, *args, **kwargs)))


async def run_in_owned_thread(
    group: ThreadGroup,
    owner: ItemOwner,
    stop: Callable[[], None],
    function: Callable[P, T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Run a function on a thread of a group for an owner and return its result. Raises QueueFull.

    If the caller is canceled, a waiting function never runs. For a running one, `stop` is called, and its end is awaited for at
    most `END_WAIT_S`. A function counts for its owner until it has ended.
    """
    return await _find_owned_threads(group).run(owner, stop, partial(function, *args, **kwargs))


class _Work(NamedTuple, Generic[T]):
    """A function that waits or runs."""

    function: Callable[[], T]
    result: "asyncio.Future[T]"


class _OwnedThreads:
    """The threads of a group that several owners share fairly, for one event loop."""

    def __init__(self, group: ThreadGroup) -> None:
        self._threads = _find_threads(group)
        self._queue: FairQueue[_Work[Any]] = FairQueue(OWNED_LEVELS[group])

    async def run(self, owner: ItemOwner, stop: Callable[[], None], function: Callable[[], T]) -> T:
        """Run a function as `run_in_owned_thread` does."""
        work = _Work(function, asyncio.get_running_loop().create_future())
        work.result.add_done_callback(_read_exception)
        self._queue.add(owner, work)
        self._start_functions()
        try:
            return await asyncio.shield(work.result)
        except asyncio.CancelledError:
            if not self._queue.remove(owner, work):
                stop()
                await asyncio.wait([work.result], timeout=END_WAIT_S)
            raise

    def _start_functions(self) -> None:
        """Start functions that wait, as long as threads are free."""
        while (found := self._queue.take()) is not None:
            owner, work = found
            running = self._threads.submit(work.function)
            running.add_done_callback(partial(self._report_end, owner, work))

    def _report_end(self, owner: ItemOwner, work: "_Work[Any]", ended: "Future[Any]") -> None:
        """Have the event loop handle the end of a function. Called by its thread."""
        with suppress(RuntimeError):  # The loop is closed.
            work.result.get_loop().call_soon_threadsafe(self._handle_end, owner, work, ended)

    def _handle_end(self, owner: ItemOwner, work: "_Work[Any]", ended: "Future[Any]") -> None:
        """Pass on the result of a function that has ended, and use its thread for others."""
        self._queue.finish(owner)
        error = ended.exception()
        if error is not None:
            work.result.set_exception(error)
        else:
            work.result.set_result(ended.result())
        self._start_functions()


class UnpackingSlots:
    """The processes that may unpack archives at a time, shared fairly by their owners, in one event loop."""

    def __init__(self, levels: Sequence[Level]) -> None:
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(levels)

    @asynccontextmanager
    async def hold(self, owner: ItemOwner) -> AsyncIterator[None]:
        """Wait for a slot, and hold it in the `with` block. Raises QueueFull."""
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.add(owner, slot)
        self._assign()
        try:
            await slot
            yield
        finally:
            if not self._queue.remove(owner, slot):
                self._queue.finish(owner)
            self._assign()

    def _assign(self) -> None:
        """Assign free slots to those that wait."""
        while (found := self._queue.take()) is not None:
            if not found[1].done():
                found[1].set_result(None)


_unpacking_by_loop: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, UnpackingSlots]] = WeakKeyDictionary()


def find_unpacking_slots() -> UnpackingSlots:
    """Return the slots for processes that unpack archives, for the running event loop; they are created on first use."""
    return _unpacking_by_loop.setdefault(
        asyncio.get_running_loop(), UnpackingSlots(OWNED_LEVELS[ThreadGroup.ARTIFACTS])
    )


_owned_by_loop: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ThreadGroup, _OwnedThreads]]] = (
    WeakKeyDictionary()
)


def _find_owned_threads(group: ThreadGroup) -> _OwnedThreads:
    """Return the shared threads of a group for the running event loop; they are created on first use."""
    groups = _owned_by_loop.setdefault(asyncio.get_running_loop(), {})
    if group not in groups:
        groups[group] = _OwnedThreads(group)
    return groups[group]


def _read_exception(result: "asyncio.Future[Any]") -> None:
    """Read the exception of a result that perhaps nobody awaits any more, so that asyncio does not log it."""
    if not result.cancelled():
        result.exception()


def _find_threads(group: ThreadGroup) -> ThreadPoolExecutor:
    """Return the threads of a group for the running event loop; they are created on first use."""
    groups = _groups_by_loop.setdefault(asyncio.get_running_loop(), {})
    if group not in groups:
        groups[group] = ThreadPoolExecutor(MAX_THREADS[group], thread_name_prefix=group)
    return groups[group]
