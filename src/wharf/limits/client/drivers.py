"""Takes the steps of conversations: for callers that block, and for callers that await."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final
from weakref import WeakValueDictionary

from wharf.limits.client.conversation import Change, Conversation, Heard, Queue, Send, Sleep
from wharf.limits.client.ledgers import AsyncRedisLedger, Ledger
from wharf.limits.client.standing import Standing
from wharf.world import World

After = Callable[[Standing], None]


class Driver:
    """Blocks its thread."""

    def __init__(self, ledger: Ledger, sleep: Callable[[float], object] | None = None) -> None:
        self._ledger: Final = ledger
        self._sleep: Final = sleep or threading.Event().wait
        self._lines: WeakValueDictionary[str, Any] = WeakValueDictionary()  # The type of locks has no public name.
        self._guard: Final = threading.Lock()

    def drive(self, talk: Conversation, account: str, line: str, send: Callable[[Send], Heard]) -> After:
        with self._guard:
            lock = self._lines.setdefault(f"{account} {line}", threading.Lock())
        try:
            step = next(talk)
            while True:
                try:
                    heard: Any = None  # What a step gives is known to the step.
                    match step:
                        case Change(what):
                            heard = self.change(account, what)
                        case Sleep(wait_s):
                            self._sleep(wait_s)
                        case Send():
                            heard = send(step)
                        case Queue(is_entering):
                            if is_entering:
                                lock.acquire()
                            else:
                                lock.release()
                except BaseException as error:  # Also an interrupt: what was taken is given back.
                    step = talk.throw(error)
                else:
                    step = talk.send(heard)
        except StopIteration as end:
            after: After = end.value
            return after

    def change(self, account: str, what: Callable[[Standing], Any]) -> Any:
        return self._ledger.change(account, what)


class AsyncDriver:
    """Awaits. Of one event loop."""

    def __init__(
        self, ledger: Ledger | AsyncRedisLedger, world: World, sleep: Callable[[float], Awaitable[object]] | None = None
    ) -> None:
        self._ledger: Final = ledger
        self._world: Final = world
        self._sleep: Final = sleep or asyncio.sleep
        self._lines: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def drive(
        self, talk: Conversation, account: str, line: str, send: Callable[[Send], Awaitable[Heard]]
    ) -> After:
        lock = self._lines.setdefault(f"{account} {line}", asyncio.Lock())
        try:
            step = next(talk)
            while True:
                try:
                    heard: Any = None  # What a step gives is known to the step.
                    match step:
                        case Change(what):
                            heard = await self.change(account, what)
                        case Sleep(wait_s):
                            await self._sleep(wait_s)
                        case Send():
                            heard = await send(step)
                        case Queue(is_entering):
                            if is_entering:
                                await lock.acquire()
                            else:
                                lock.release()
                except BaseException as error:  # Also a cancellation: what was taken is given back.
                    step = talk.throw(error)
                else:
                    step = talk.send(heard)
        except StopIteration as end:
            after: After = end.value
            return after

    async def change(self, account: str, what: Callable[[Standing], Any]) -> Any:
        ledger = self._ledger
        if isinstance(ledger, AsyncRedisLedger):
            return await self._to_its_end(ledger.change_async(account, what))
        if not ledger.is_far:
            return ledger.change(account, what)
        return await self._to_its_end(asyncio.to_thread(ledger.change, account, what))

    async def _to_its_end(self, changing: Coroutine[Any, Any, Any]) -> Any:
        """Who is cancelled gives back what was taken, and so must not do that before it was taken."""
        task = self._world.start(changing, name="limits: change a standing")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            while not task.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([task])
            raise
