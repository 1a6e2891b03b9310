"""What browsers with the same rights share: one stream of the changes of the cluster, and the updates of their pages after each."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Hashable
from typing import Any, Final, Generic, TypeVar

import msgspec

from wharf.contract.client.streams import MAX_CHANGE_LINE_BYTES
from wharf.contract.client.transport import StreamedReply, Unreachable
from wharf.web.api_transport import FIRST_ERROR_STATUS
from wharf.world import World
from wharf.world.lines import LineSplitter
from wharf.world.tasks import cancel_tasks

T = TypeVar("T")

MAX_AGE_S: Final = 2.0
"""How long a reply is shared. Browsers that learn of the same change ask within a second and a half."""
MAX_PAGES: Final = 256
"""Limits the memory: a compressed page has 1 to 20 kB."""
MAX_BROWSERS: Final = 4_096
"""Browsers that follow changes in one process at a time. Protects its memory and open files."""
MAX_UNSENT: Final = 8
"""Messages that wait for one browser. A browser that reads slower is disconnected, and loads its page again."""
BROWSERS_PER_STEP: Final = 20
"""Browsers that get a message in one step, which takes about a millisecond."""
STEP_PAUSE_S: Final = 0.01
"""The pause between two steps: the updates of 1,000 pages, which follow at once, are spread over half a second."""
HEARTBEAT: Final = b": .\n\n"

log = logging.getLogger(__name__)


class _LineIndex(msgspec.Struct, rename={"index": "Index"}):
    """The log index of a line of changes; 0 in a heartbeat. The rest of the line is not decoded."""

    index: int = 0


_decode_index: Final = msgspec.json.Decoder(_LineIndex).decode
StreamOpener = Callable[[], Awaitable[StreamedReply]]
"""Opens the stream of changes of the API. Raises `Unreachable`."""


class TooManyBrowsers(Exception):
    """The refusal of a browser because `MAX_BROWSERS` follow changes already."""

    def __init__(self) -> None:
        super().__init__(
            f"{MAX_BROWSERS:,} browsers follow changes at this server process: close some, or use another server"
        )


class ChangeHub:
    """The streams of changes of the API that are open, by the rights of their browsers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._groups: dict[Hashable, _Group] = {}

    async def join(self, rights: Hashable, open_stream: StreamOpener) -> "BrowserSubscription":
        """Add a browser. The first one with these rights opens the stream, and alone gets a refusal. Raises `TooManyBrowsers`."""
        if sum(len(group.subscriptions) for group in self._groups.values()) >= MAX_BROWSERS:
            raise TooManyBrowsers
        while True:
            group = self._groups.get(rights)
            is_first = group is None
            if group is None:
                group = self._groups[rights] = _Group(rights)
                group.task = self._world.start_task(self._run(group, open_stream), name="page changes")
            subscription = BrowserSubscription(group)
            group.subscriptions[subscription] = None
            try:
                await group.is_open.wait()
            except asyncio.CancelledError:
                await self.leave(subscription)
                raise
            if is_first or group.status < FIRST_ERROR_STATUS:
                return subscription
            # The API refused the first browser, such as because of a limit or a ban of its person.
            await self.leave(subscription)

    async def leave(self, subscription: "BrowserSubscription") -> None:
        """Remove a browser. With the last one of its group, the stream of the API ends."""
        group = subscription.group
        group.subscriptions.pop(subscription, None)
        if not group.subscriptions and group.task is not None:
            self._remove(group)
            await cancel_tasks(group.task)

    def _remove(self, group: "_Group") -> None:
        if self._groups.get(group.rights) is group:
            del self._groups[group.rights]

    async def _run(self, group: "_Group", open_stream: StreamOpener) -> None:
        """Open the stream, and pass its messages on until it ends or the last browser has left."""
        try:
            reply = await open_stream()
            group.status = reply.status
            try:
                if reply.status == 200:
                    await _pass_on(reply, group)
            finally:
                await reply.close()
        except Unreachable as problem:
            group.problem = str(problem)
            log.debug("stream of changes ended why=%s", problem)
        finally:
            self._remove(group)
            group.end()


class _Group:
    """The browsers with the same rights."""

    def __init__(self, rights: Hashable) -> None:
        self.rights = rights
        self.task: asyncio.Task[None] | None = None
        self.is_open = asyncio.Event()
        """Whether the API has answered, or cannot be reached."""
        self.status = 0
        self.problem = ""
        self.index = 0
        """The log index up to which changes were passed on; at first, that of the state from which on they are sent."""
        self.has_ended = False
        self.subscriptions: dict[BrowserSubscription, None] = {}

    def end(self) -> None:
        """End the messages of all browsers."""
        self.has_ended = True
        self.is_open.set()
        for subscription in self.subscriptions:
            subscription.wake()


class BrowserSubscription:
    """A browser that waits for changes. Pass it to `ChangeHub.leave` at the end."""

    def __init__(self, group: _Group) -> None:
        self.group = group
        self._unsent: deque[bytes] = deque()
        self._is_too_slow = False
        self._news = asyncio.Event()

    @property
    def status(self) -> int:
        """The status of the reply of the API; 0 if it cannot be reached."""
        return self.group.status

    @property
    def problem(self) -> str:
        """Why the API cannot be reached; empty if it can."""
        return self.group.problem

    def add_message(self, message: bytes) -> None:
        """Send a message to the browser when it has read the ones before."""
        self._is_too_slow = self._is_too_slow or len(self._unsent) >= MAX_UNSENT
        self._unsent.append(message)
        self.wake()

    def wake(self) -> None:
        self._news.set()

    async def iterate_messages(self) -> AsyncGenerator[bytes, None]:
        """Yield messages for the browser, until the API ends its stream or the browser reads too slowly.

        The first one has the index from which on it gets changes. A page that is older has missed some.
        """
        yield b'event: start\ndata: {"Index":%d}\n\n' % self.group.index
        while True:
            await self._news.wait()
            self._news.clear()
            while self._unsent and not self._is_too_slow:
                yield self._unsent.popleft()
            if self.group.has_ended or self._is_too_slow:
                return


async def _pass_on(reply: StreamedReply, group: _Group) -> None:
    """Pass each line of the API on as an event, and its heartbeats as comments, so that proxies keep the connections."""
    lines = LineSplitter(MAX_CHANGE_LINE_BYTES)
    while chunk := await reply.read_chunk():
        for line in lines.feed(chunk):
            index = _decode_index(line).index
            group.index = index or group.index
            if not group.is_open.is_set():
                group.is_open.set()
                continue
            message = b"event: changes\ndata: " + line + b"\n\n" if index else HEARTBEAT
            for number, subscription in enumerate(tuple(group.subscriptions), start=1):
                subscription.add_message(message)
                if number % BROWSERS_PER_STEP == 0:
                    await asyncio.sleep(STEP_PAUSE_S)


class PageCache(Generic[T]):
    """Builds each reply once for all browsers that ask for it within `MAX_AGE_S`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tasks: dict[Hashable, tuple[float, asyncio.Task[T]]] = {}
        """By key, the task that builds or has built the reply, and when it began. The oldest is the first."""

    async def get(
        self, key: Hashable, build: Callable[[], Coroutine[Any, Any, T]], is_lasting: Callable[[T], bool]
    ) -> T:
        """Return the reply with this key. Raises what `build` raises.

        It is built in a task of its own: other browsers wait for it if this one leaves. A reply that is not lasting is sent to
        those who wait for it, and built again for those who ask later.
        """
        self._drop_old_tasks()
        entry = self._tasks.get(key)
        if entry is None or (entry[1].done() and not _is_shareable(entry[1], is_lasting)):
            task = self._world.start_task(build(), name="shared page")
            entry = self._tasks[key] = (self._world.monotonic_s(), task)
            task.add_done_callback(lambda done: self._drop_unless_lasting(key, done, is_lasting))
        return await asyncio.shield(entry[1])

    def _drop_unless_lasting(self, key: Hashable, done: asyncio.Task[T], is_lasting: Callable[[T], bool]) -> None:
        """Remove a reply that was built if others must not get it too."""
        if not _is_shareable(done, is_lasting) and key in self._tasks and self._tasks[key][1] is done:
            del self._tasks[key]

    def _drop_old_tasks(self) -> None:
        """Remove replies that are too old or too many. A browser that waits for one gets it nevertheless."""
        oldest_s = self._world.monotonic_s() - MAX_AGE_S
        while self._tasks:
            key, (began_s, _) = next(iter(self._tasks.items()))
            if began_s > oldest_s and len(self._tasks) < MAX_PAGES:
                return
            del self._tasks[key]


def _is_shareable(done: asyncio.Task[T], is_lasting: Callable[[T], bool]) -> bool:
    """Return whether the reply of a task that has ended may be sent to browsers that ask later."""
    return not done.cancelled() and done.exception() is None and is_lasting(done.result())
