"""A wrapper that simulates an outage of a remote store, so that operators can test the `on_store_loss` of their rules."""

import asyncio
from collections.abc import Iterable

from wharf.limits.core.plans import Charge
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult
from wharf.limits.stores.forwarding import ForwardingStore
from wharf.limits.stores.port import RefundReason, RemoteStore, StoreUnavailable


class DrillStore(ForwardingStore):
    """A wrapper around a remote store that fails the calls for requests while `is_active` is set.

    Calls of operators still pass. So does `take_now`: quota that was taken in advance is valid during an outage too.
    """

    def __init__(self, store: RemoteStore) -> None:
        super().__init__(store)
        self.is_active = False

    def _raise_if_active(self) -> None:
        """Raise `StoreUnavailable` during a drill, which is a simulated outage."""
        if self.is_active:
            raise StoreUnavailable("a drill is active: the store is treated as unavailable")

    def start_take(self, call: StoreCall) -> "asyncio.Future[TakeResult]":
        """Start to charge a request, and return a future for the result; during a drill, return a failed future."""
        try:
            self._raise_if_active()
        except StoreUnavailable as problem:
            failed: asyncio.Future[TakeResult] = asyncio.get_running_loop().create_future()
            failed.set_exception(problem)
            failed.exception()  # Mark it as retrieved: asyncio logs exceptions that nobody awaits.
            return failed
        return super().start_take(call)

    async def take(self, call: StoreCall) -> TakeResult:
        self._raise_if_active()
        return await super().take(call)

    async def undo(self, call: StoreCall) -> None:
        self._raise_if_active()
        await super().undo(call)

    async def renew(self, request_ids: Iterable[str]) -> int:
        self._raise_if_active()
        return await super().renew(request_ids)

    async def refund(self, request_id: str, reason: RefundReason) -> bool:
        self._raise_if_active()
        return await super().refund(request_id, reason)

    async def add_usage(self, charges: Iterable[Charge], amount: int) -> None:
        self._raise_if_active()
        await super().add_usage(charges, amount)

    async def peek(self, charges: Iterable[Charge]) -> tuple[CounterReading, ...]:
        self._raise_if_active()
        return await super().peek(charges)

    async def check(self) -> None:
        self._raise_if_active()
        await super().check()
