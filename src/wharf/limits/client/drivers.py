"""Takes the steps of conversations: for callers that block, and for callers that await."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakValueDictionary

from wharf.limits.client.conversation import Change, Conversation, Heard, Queue, Send, Sleep
from wharf.limits.client.ledgers import Ledger
from wharf.limits.client.standing import Standing

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

    def __init__(self, ledger: Ledger, sleep: Callable[[float], Awaitable[object]] | None = None) -> None:
        self._ledger: Final = ledger
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
        if not self._ledger.is_far:
            return self._ledger.change(account, what)
        return await asyncio.to_thread(self._ledger.change, account, what)
