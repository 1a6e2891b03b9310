"""A simulated outage: the calls of requests fail, and everything else still reaches the store."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.limits.builders import NOON_MS, a_user
from tests.limits.stores.held_store import HeldStore
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.store_calls import StoreCall, TakeResult
from wharf.limits.rules import read_rules
from wharf.limits.stores.drill import DrillStore
from wharf.limits.stores.port import RefundReason, StoreUnavailable

RULES = read_rules('profile = "none"\n[[rule]]\nname = "core"\nresource = "core"\nceiling = 9\n')


def make_call() -> StoreCall:
    return Limiter(RULES).build_call(RequestFacts("r1", "GET", "/x", a_user()), NOON_MS)


CALLS_OF_REQUESTS: dict[str, tuple[Callable[[DrillStore], Awaitable[Any]], tuple[Any, ...], Any]] = {
    "undo": (lambda store: store.undo(make_call()), ("undo", "r1"), None),
    "renew": (lambda store: store.renew(["a", "b"]), ("renew", "a", "b"), 2),
    "refund": (lambda store: store.refund("a", RefundReason.FAULT), ("refund", "a", RefundReason.FAULT), True),
    "add usage": (lambda store: store.add_usage(make_call().charges, 3), ("add usage", ["core"], 3), None),
    "peek": (lambda store: store.peek(make_call().charges), ("peek",), None),
    "check": (lambda store: store.check(), ("check",), None),
}
OTHER_CALLS: dict[str, tuple[Callable[[DrillStore], Awaitable[Any]], tuple[Any, ...], Any]] = {
    "release": (lambda store: release(store), ("release", "a"), None),
    "reset": (lambda store: store.reset(make_call().charges), ("reset", ["core"]), None),
    "ban": (lambda store: store.ban("token:t", 5), ("ban", "token:t", 5), None),
    "ban end": (lambda store: store.get_ban_end_ms("token:t"), ("ban end", "token:t"), 7),
    "set rules": (lambda store: store.set_rules(RULES), ("set rules", len(RULES.rules)), None),
}


async def release(store: DrillStore) -> None:
    await store.release("a")


@pytest.mark.parametrize("name", [*CALLS_OF_REQUESTS, *OTHER_CALLS])
def test_without_a_drill_each_call_reaches_the_store(name: str) -> None:
    async def scenario() -> None:
        held = HeldStore()
        send, call, value = (CALLS_OF_REQUESTS | OTHER_CALLS)[name]
        result = await send(DrillStore(held))
        assert held.calls == [call]
        assert value is None or result == value

    asyncio.run(scenario())


@pytest.mark.parametrize("name", CALLS_OF_REQUESTS)
def test_during_a_drill_the_calls_of_requests_fail(name: str) -> None:
    async def scenario() -> list[Any]:
        held = HeldStore()
        drill = DrillStore(held)
        drill.is_active = True
        with pytest.raises(StoreUnavailable, match="a drill is active"):
            await CALLS_OF_REQUESTS[name][0](drill)
        return held.calls

    assert asyncio.run(scenario()) == []


@pytest.mark.parametrize("name", OTHER_CALLS)
def test_during_a_drill_releases_and_calls_of_operators_reach_the_store(name: str) -> None:
    async def scenario() -> list[Any]:
        held = HeldStore()
        drill = DrillStore(held)
        drill.is_active = True
        await OTHER_CALLS[name][0](drill)
        return held.calls

    assert asyncio.run(scenario()) == [OTHER_CALLS[name][1]]


@pytest.mark.parametrize("is_active", [True, False])
def test_a_drill_charges_nothing_but_prefetched_quota(is_active: bool) -> None:
    async def scenario() -> list[Any]:
        held = HeldStore()
        drill = DrillStore(held)
        drill.is_active = is_active
        assert drill.take_now(make_call()) is None
        prefetched = held.prefetched = TakeResult(True, NOON_MS, (1,), (), (), (), 1, NOON_MS)
        pending = drill.start_take(make_call())
        if is_active:
            assert isinstance(pending.exception(), StoreUnavailable)
            with pytest.raises(StoreUnavailable):
                await drill.take(make_call())
        else:
            taking = asyncio.ensure_future(drill.take(make_call()))
            await asyncio.sleep(0)
            held.takes[1].set_result(prefetched)
            assert await taking is prefetched
            pending.cancel()
        return [drill.take_now(make_call()) is prefetched, drill.local_counters, len(held.takes)]

    assert asyncio.run(scenario()) == [True, None, 0 if is_active else 2]
