"""Takes the steps of conversations: for callers that block, and for callers that await."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final
from weakref import WeakValueDictionary

from wharf.limits.client.limit_state import LimitState
from wharf.limits.client.state_stores import AsyncRedisStateStore, LimitStateStore
from wharf.limits.client.steps import QueueStep, ReceivedResponse, RequestSteps, SendStep, SleepStep, UpdateStep
from wharf.world import World

FinalUpdate = Callable[[LimitState], None]


class StepRunner:
    """Blocks its thread."""

    def __init__(self, state_store: LimitStateStore, sleep: Callable[[float], object] | None = None) -> None:
        self._ledger: Final = state_store
        self._sleep: Final = sleep or threading.Event().wait
        self._lines: WeakValueDictionary[str, Any] = WeakValueDictionary()  # The type of locks has no public name.
        self._guard: Final = threading.Lock()

    def run_steps(
        self, steps: RequestSteps, account: str, queue_name: str, send: Callable[[SendStep], ReceivedResponse]
    ) -> FinalUpdate:
        with self._guard:
            lock = self._lines.setdefault(f"{account} {queue_name}", threading.Lock())
        try:
            step = next(steps)
            while True:
                try:
                    heard: Any = None  # What a step gives is known to the step.
                    match step:
                        case UpdateStep(what):
                            heard = self.update_state(account, what)
                        case SleepStep(wait_s):
                            self._sleep(wait_s)
                        case SendStep():
                            heard = send(step)
                        case QueueStep(is_entering):
                            if is_entering:
                                lock.acquire()
                            else:
                                lock.release()
                except BaseException as error:  # Also an interrupt: what was taken is given back.
                    step = steps.throw(error)
                else:
                    step = steps.send(heard)
        except StopIteration as end:
            after: FinalUpdate = end.value
            return after

    def update_state(self, account: str, update: Callable[[LimitState], Any]) -> Any:
        return self._ledger.update(account, update)


class AsyncStepRunner:
    """Awaits. Of one event loop."""

    def __init__(
        self,
        state_store: LimitStateStore | AsyncRedisStateStore,
        world: World,
        sleep: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        self._ledger: Final = state_store
        self._world: Final = world
        self._sleep: Final = sleep or asyncio.sleep
        self._lines: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run_steps(
        self,
        steps: RequestSteps,
        account: str,
        queue_name: str,
        send: Callable[[SendStep], Awaitable[ReceivedResponse]],
    ) -> FinalUpdate:
        lock = self._lines.setdefault(f"{account} {queue_name}", asyncio.Lock())
        try:
            step = next(steps)
            while True:
                try:
                    heard: Any = None  # What a step gives is known to the step.
                    match step:
                        case UpdateStep(what):
                            heard = await self.update_state(account, what)
                        case SleepStep(wait_s):
                            await self._sleep(wait_s)
                        case SendStep():
                            heard = await send(step)
                        case QueueStep(is_entering):
                            if is_entering:
                                await lock.acquire()
                            else:
                                lock.release()
                except BaseException as error:  # Also a cancellation: what was taken is given back.
                    step = steps.throw(error)
                else:
                    step = steps.send(heard)
        except StopIteration as end:
            after: FinalUpdate = end.value
            return after

    async def update_state(self, account: str, update: Callable[[LimitState], Any]) -> Any:
        ledger = self._ledger
        if isinstance(ledger, AsyncRedisStateStore):
            return await self._to_its_end(ledger.update_async(account, update))
        if not ledger.can_block:
            return ledger.update(account, update)
        return await self._to_its_end(asyncio.to_thread(ledger.update, account, update))

    async def _to_its_end(self, changing: Coroutine[Any, Any, Any]) -> Any:
        """Who is cancelled gives back what was taken, and so must not do that before it was taken."""
        task = self._world.start_task(changing, name="limits: change a standing")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            while not task.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([task])
            raise
