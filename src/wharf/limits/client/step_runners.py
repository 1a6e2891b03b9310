"""Runs the steps that `generate_steps` yields: for callers that block, and for callers that await."""

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
"""The update of the limit state to apply after the body of the response was read."""


class StepRunner:
    """Runs the steps of requests in the calling thread, which it blocks."""

    def __init__(self, state_store: LimitStateStore, sleep: Callable[[float], object] | None = None) -> None:
        self._state_store: Final = state_store
        self._sleep: Final = sleep or threading.Event().wait
        self._locks: WeakValueDictionary[str, Any] = WeakValueDictionary()  # The type of locks has no public name.
        self._guard: Final = threading.Lock()

    def run_steps(
        self, steps: RequestSteps, account: str, queue_name: str, send: Callable[[SendStep], ReceivedResponse]
    ) -> FinalUpdate:
        """Run all steps of a request. Return the update of the limit state to apply after the body was read.

        `send` sends the request once. Requests with the same account and queue name wait for their permits in order.
        """
        with self._guard:
            lock = self._locks.setdefault(f"{account} {queue_name}", threading.Lock())
        try:
            step = next(steps)
            while True:
                try:
                    result: Any = None  # Its type depends on the step.
                    match step:
                        case UpdateStep(update):
                            result = self.update_state(account, update)
                        case SleepStep(wait_s):
                            self._sleep(wait_s)
                        case SendStep():
                            result = send(step)
                        case QueueStep(is_entering):
                            if is_entering:
                                lock.acquire()
                            else:
                                lock.release()
                except BaseException as error:  # Includes KeyboardInterrupt, so that permits are always returned.
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            final_update: FinalUpdate = end.value
            return final_update

    def update_state(self, account: str, update: Callable[[LimitState], Any]) -> Any:
        """Apply a function to the limit state of an account and return its result."""
        return self._state_store.update(account, update)


class AsyncStepRunner:
    """Runs the steps of requests in one event loop."""

    def __init__(
        self,
        state_store: LimitStateStore | AsyncRedisStateStore,
        world: World,
        sleep: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        self._state_store: Final = state_store
        self._world: Final = world
        self._sleep: Final = sleep or asyncio.sleep
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run_steps(
        self,
        steps: RequestSteps,
        account: str,
        queue_name: str,
        send: Callable[[SendStep], Awaitable[ReceivedResponse]],
    ) -> FinalUpdate:
        """Run all steps of a request. Return the update of the limit state to apply after the body was read.

        `send` sends the request once. Requests with the same account and queue name wait for their permits in order.
        """
        lock = self._locks.setdefault(f"{account} {queue_name}", asyncio.Lock())
        try:
            step = next(steps)
            while True:
                try:
                    result: Any = None  # Its type depends on the step.
                    match step:
                        case UpdateStep(update):
                            result = await self.update_state(account, update)
                        case SleepStep(wait_s):
                            await self._sleep(wait_s)
                        case SendStep():
                            result = await send(step)
                        case QueueStep(is_entering):
                            if is_entering:
                                await lock.acquire()
                            else:
                                lock.release()
                except BaseException as error:  # Includes cancellation, so that permits are always returned.
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            final_update: FinalUpdate = end.value
            return final_update

    async def update_state(self, account: str, update: Callable[[LimitState], Any]) -> Any:
        """Apply a function to the limit state of an account, and return its result, without blocking the event loop."""
        state_store = self._state_store
        if isinstance(state_store, AsyncRedisStateStore):
            return await self._finish_despite_cancel(state_store.update_async(account, update))
        if not state_store.can_block:
            return state_store.update(account, update)
        return await self._finish_despite_cancel(asyncio.to_thread(state_store.update, account, update))

    async def _finish_despite_cancel(self, update: Coroutine[Any, Any, Any]) -> Any:
        """Finish an update of the state even if this task is cancelled.

        A cancelled request returns its permit, which must not happen before the permit was stored.
        """
        task = self._world.start_task(update, name="limits: update limit state")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            while not task.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([task])
            raise
