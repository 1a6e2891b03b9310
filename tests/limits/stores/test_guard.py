"""The wrapper around remote stores: what becomes of calls whose reply is late or lost, and when the store counts as back.

The store behind it replies only when a test says so.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from tests.limits.builders import NOON_MS, a_user
from tests.limits.stores.held_store import LOST, HeldStore
from tests.waiting import wait_on_loop_until
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.store_calls import StoreCall, TakeResult
from wharf.limits.rules import read_rules
from wharf.limits.stores import guard as guard_module
from wharf.limits.stores.guard import Breaker, BreakerState, GuardedStore, GuardSettings
from wharf.limits.stores.port import RefundReason, UnsuitableStore
from wharf.world import RealWorld

T = TypeVar("T")
CORE = 'profile = "none"\n[[rule]]\nname = "core"\nresource = "core"\nceiling = 10\n'
CLOSED = CORE + 'on_store_loss = "closed"\n'
OPEN = CORE + 'on_store_loss = "open"\n'


class Guarded:
    """A guarded store whose store a test plays."""

    def __init__(self, rules: str, settings: GuardSettings) -> None:
        self.rules = read_rules(rules)
        self.store = HeldStore()
        self.guard = GuardedStore(self.store, self.rules, settings, RealWorld())
        self.limiter = Limiter(self.rules)

    def call(self, request_id: str = "r1") -> StoreCall:
        return self.limiter.build_call(RequestFacts(request_id, "GET", "/x", a_user()), self.guard.now_ms())

    def start(self, request_id: str = "r1") -> "asyncio.Task[TakeResult]":
        return asyncio.ensure_future(self.guard.take(self.call(request_id)))

    async def lose(self, request_id: str = "r1") -> TakeResult:
        """Send a request whose reply from the store does not arrive in time."""
        return await self.guard.take(self.call(request_id))

    def reply(self, *, is_admitted: bool = True, number: int = -1) -> None:
        """Let the store reply to a take, by default to the last one."""
        count = len(self.call().charges)
        hits = () if is_admitted else (0,)
        result = TakeResult(is_admitted, NOON_MS, (4,) * count, hits, hits, (), 4, NOON_MS + 5_000)
        self.store.takes[number].set_result(result)

    def list_undone(self) -> list[str]:
        """Return the ids of the requests whose charges the store was told to undo."""
        return [call[1] for call in self.store.calls if call[0] == "undo"]

    def count_checks(self) -> int:
        return self.store.calls.count(("check",))

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


PATIENT = GuardSettings(wait_ms=60_000, losses_most=3)
HASTY = GuardSettings(wait_ms=1, losses_most=99)
FREQUENT = GuardSettings(wait_ms=1, losses_most=99, probe_every_ms=2, check_every_ms=2)
PATIENT_AND_FREQUENT = GuardSettings(wait_ms=60_000, probe_every_ms=2, check_every_ms=2)


def run(scenario: Callable[[Guarded], Awaitable[T]], rules: str = CORE, settings: GuardSettings = HASTY) -> T:
    async def wait() -> T:
        guarded = Guarded(rules, settings)
        try:
            return await scenario(guarded)
        finally:
            guarded.store.problem, guarded.store.is_silent = None, False
            if guarded.store.silent is not None and not guarded.store.silent.done():
                guarded.store.silent.set_result(None)
            await guarded.guard.close()

    return asyncio.run(wait())


# -- queues of this process -------------------------------------------------------------------------------------------


def test_a_call_in_a_queue_waits_while_the_store_replies_in_time() -> None:
    async def scenario(guarded: Guarded) -> list[Any]:
        guarded.store.longest_wait_s = 0.0
        task = guarded.start()
        await wait_on_loop_until(lambda: guarded.store.wait_checks > 3, what="the timeout is over")
        guarded.reply()
        result = await task
        counts = guarded.guard.counts
        return [result.bucket_count_before, counts.lost_calls, counts.local_decisions, counts.queue_timeouts]

    assert run(scenario) == [4, 0, 0, 0]


def test_a_call_that_waits_too_long_in_a_queue_is_decided_here_and_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "MAX_QUEUE_WAIT_S", 0.02)

    async def scenario(guarded: Guarded) -> list[Any]:
        guarded.store.longest_wait_s = 0.0
        result = await guarded.lose()
        counts = guarded.guard.counts
        return [result.is_admitted, counts.lost_calls, counts.local_decisions, counts.queue_timeouts, counts.is_away]

    assert run(scenario, settings=GuardSettings(wait_ms=1, losses_most=1)) == [True, 0, 1, 1, False]


def test_another_call_in_a_queue_is_no_loss_either() -> None:
    async def scenario(guarded: Guarded) -> list[Any]:
        guarded.store.longest_wait_s = 0.0
        guarded.store.is_silent = True
        task = asyncio.ensure_future(guarded.guard.refund("a", RefundReason.GONE))
        await wait_on_loop_until(lambda: guarded.store.wait_checks > 3, what="the timeout is over")
        assert guarded.store.silent is not None
        guarded.store.silent.set_result(None)
        return [await task, guarded.guard.counts.lost_calls]

    assert run(scenario) == [True, 0]


def test_a_reply_that_arrived_while_the_loop_was_busy_is_in_time() -> None:
    async def scenario(guarded: Guarded) -> list[Any]:
        task = guarded.start()
        await guarded.settle()
        busy_until_s = asyncio.get_running_loop().time() + 0.05
        while asyncio.get_running_loop().time() < busy_until_s:
            pass  # The loop is busy for longer than the timeout.

        async def read_reply() -> None:
            await guarded.settle()  # To read a reply takes some iterations of the loop.
            guarded.reply()

        reading = asyncio.ensure_future(read_reply())
        result = await task
        await reading
        return [result.bucket_count_before, guarded.guard.counts.lost_calls]

    assert run(scenario, settings=GuardSettings(wait_ms=20, losses_most=1)) == [4, 0]


class SteppedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock advances only when a test says so."""

    now_s = 1_000.0

    def time(self) -> float:
        return self.now_s


def run_stepped(scenario: Callable[[Guarded, SteppedLoop], Awaitable[T]], settings: GuardSettings) -> T:
    """Run a scenario on a loop that the test advances. The scenario calls the guard only; no check of the store is due."""

    async def wait() -> T:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SteppedLoop)
        return await scenario(Guarded(CORE, settings), loop)

    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        return runner.run(wait())


async def advance(loop: SteppedLoop, *, step_s: float, until_s: float) -> None:
    """Let each iteration of the loop take this long, until the clock of the loop shows this time."""
    while loop.now_s < until_s:
        loop.now_s += step_s
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # Timers that are due run after this task.


@pytest.mark.parametrize("pause_s", [0.008, 0.04])
def test_pauses_of_the_loop_do_not_count_as_time_of_the_store(pause_s: float) -> None:
    async def scenario(guarded: Guarded, loop: SteppedLoop) -> list[Any]:
        guarded.store.sent_at_s = loop.now_s
        task = guarded.start()
        await asyncio.sleep(0)
        await advance(loop, step_s=pause_s, until_s=loop.now_s + 0.13)
        guarded.reply()
        return [(await task).bucket_count_before, guarded.guard.counts.lost_calls]

    # Of these 130 ms, the loop could read replies for 80 ms at most.
    assert run_stepped(scenario, GuardSettings(wait_ms=100, losses_most=1)) == [4, 0]


def test_a_store_that_does_not_reply_is_late_despite_pauses_of_the_loop() -> None:
    async def scenario(guarded: Guarded, loop: SteppedLoop) -> list[Any]:
        began_s = guarded.store.sent_at_s = loop.now_s
        task = guarded.start()
        await asyncio.sleep(0)
        await advance(loop, step_s=0.03, until_s=began_s + 0.06)
        while not task.done():
            await advance(loop, step_s=0.001, until_s=loop.now_s + 0.001)
        result = await task
        return [result.is_admitted, guarded.guard.counts.lost_calls, loop.now_s - began_s < 0.17]

    assert run_stepped(scenario, GuardSettings(wait_ms=100, losses_most=99)) == [True, 1, True]


# -- the breaker ---------------------------------------------------------------------------------------------------


def test_the_breaker_opens_after_consecutive_losses_and_closes_after_a_probe() -> None:
    breaker = Breaker(max_losses=2)
    steps = [breaker.record_loss()]
    breaker.record_reply()
    steps += [breaker.record_loss() for _ in range(3)]
    assert (steps, breaker.is_open, breaker.open_count) == ([False, False, True, False], True, 1)

    breaker.record_reply()
    assert breaker.state is BreakerState.OPEN  # A late reply does not close it.
    breaker.record_probe()
    assert (breaker.is_open, [breaker.record_loss() for _ in range(2)], breaker.open_count) == (False, [False, True], 2)


def test_a_store_that_is_unavailable_at_the_start_is_not_called() -> None:
    async def scenario(guarded: Guarded) -> tuple[bool, list[Any], int, bool, int]:
        guarded.guard.start_unavailable()
        result = await guarded.lose()
        counts = guarded.guard.counts
        return result.is_admitted, guarded.store.calls, counts.outages, counts.is_away, counts.lost_calls

    assert run(scenario, settings=PATIENT) == (True, [], 1, True, 3)


# -- requests ------------------------------------------------------------------------------------------------------


def test_a_reply_in_time_is_the_result_and_counts_no_loss() -> None:
    async def scenario(guarded: Guarded) -> list[Any]:
        task = guarded.start()
        await guarded.settle()
        guarded.reply()
        result = await task
        counts = guarded.guard.counts
        return [result.bucket_count_before, counts.lost_calls, counts.local_decisions, counts.is_away]

    assert run(scenario, settings=PATIENT) == [4, 0, 0, False]


def test_only_consecutive_losses_open_the_breaker() -> None:
    async def scenario(guarded: Guarded) -> list[bool]:
        seen: list[bool] = []
        for is_lost in (True, True, False, True, True, True):
            task = guarded.start(f"r{len(seen)}")
            await guarded.settle()
            if is_lost:
                guarded.store.takes[-1].set_exception(LOST)
            else:
                guarded.reply()
            await task
            seen.append(guarded.guard.counts.is_away)
        return seen

    assert run(scenario, settings=PATIENT) == [False, False, False, False, False, True]


def test_an_error_that_is_no_outage_reaches_the_caller() -> None:
    async def scenario(guarded: Guarded) -> int:
        task = guarded.start()
        await guarded.settle()
        guarded.store.takes[0].set_exception(ValueError("a bug"))
        with pytest.raises(ValueError, match="a bug"):
            await task
        return guarded.guard.counts.lost_calls

    assert run(scenario, settings=PATIENT) == 0


@pytest.mark.parametrize("is_away", [False, True])
def test_prefetched_quota_is_used_during_an_outage_too(is_away: bool) -> None:
    async def scenario(guarded: Guarded) -> tuple[int, list[Any]]:
        if is_away:
            guarded.guard.start_unavailable()
        guarded.store.prefetched = TakeResult(True, NOON_MS, (8,), (), (), (), 8, NOON_MS)
        return (await guarded.lose()).bucket_count_before, guarded.store.calls

    assert run(scenario, settings=PATIENT) == (8, [])


def test_a_known_count_limits_what_is_admitted_during_an_outage() -> None:
    async def scenario(guarded: Guarded) -> list[bool]:
        task = guarded.start()
        await guarded.settle()
        end_ms = guarded.guard.now_ms() + 60_000
        guarded.store.takes[0].set_result(TakeResult(True, NOON_MS, (8,), (), (), (), 8, end_ms))
        await task
        guarded.guard.start_unavailable()
        admitted = [(await guarded.lose(f"r{number}")).is_admitted for number in range(3)]
        counts = guarded.guard.counts
        assert (counts.local_decisions, counts.local_refusals) == (3, 2)
        return admitted

    settings = GuardSettings(wait_ms=60_000, fallback_processes=1)
    assert run(scenario, settings=settings) == [True, False, False]


# -- replies that arrive late --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "is_admitted", "later_calls", "kept", "undone"),
    [
        (OPEN, True, [], 1, 0),
        (OPEN, False, [], 0, 0),
        (CLOSED, True, [("undo", "r1")], 0, 1),
        (CLOSED, False, [], 0, 0),
    ],
)
def test_a_late_charge_stays_if_the_request_was_admitted_and_is_undone_if_it_was_refused(
    rules: str, is_admitted: bool, later_calls: list[Any], kept: int, undone: int
) -> None:
    async def scenario(guarded: Guarded) -> list[Any]:
        result = await guarded.lose()
        guarded.reply(is_admitted=is_admitted)
        await guarded.settle()
        counts = guarded.guard.counts
        return [result.is_admitted, guarded.store.calls[1:], counts.late_kept, counts.late_undone, counts.unsettled]

    assert run(scenario, rules) == [rules is OPEN, later_calls, kept, undone, 0]


@pytest.mark.parametrize("is_admitted", [True, False])
def test_a_request_that_ends_before_its_late_charge_is_released_after_it(is_admitted: bool) -> None:
    async def scenario(guarded: Guarded) -> list[list[Any]]:
        await guarded.lose()
        await guarded.guard.release("r1")
        before = guarded.store.calls[1:]
        guarded.reply(is_admitted=is_admitted)
        await guarded.settle()
        return [before, guarded.store.calls[1:]]

    assert run(scenario, OPEN) == [[], [("release", "r1")] if is_admitted else []]


def test_a_request_that_ends_after_its_late_charge_is_released_once() -> None:
    async def scenario(guarded: Guarded) -> list[Any]:
        await guarded.lose()
        guarded.reply()
        await guarded.settle()
        await guarded.guard.release("r1")
        return [guarded.store.calls[1:], guarded.guard.fallback.release("r1", guarded.guard.now_ms())]

    # It holds a slot here and one at the store. Both are free now.
    assert run(scenario, OPEN) == [[("release", "r1")], False]


def test_a_request_that_the_store_admitted_is_released_at_the_store() -> None:
    async def scenario(guarded: Guarded) -> list[Any]:
        task = guarded.start()
        await guarded.settle()
        guarded.reply()
        await task
        await guarded.guard.release("r1")
        return guarded.store.calls

    assert run(scenario, settings=PATIENT) == [("take", "r1"), ("release", "r1")]


@pytest.mark.parametrize(("problem", "unsettled"), [(None, 0), (LOST, 1)])
def test_a_lost_release_is_counted(problem: Exception | None, unsettled: int) -> None:
    async def scenario(guarded: Guarded) -> int:
        await guarded.guard.release("r1")
        if problem is None:
            guarded.store.releases[0].set_result(None)
        else:
            guarded.store.releases[0].set_exception(problem)
        await guarded.settle()
        return guarded.guard.counts.unsettled

    assert run(scenario) == unsettled


@pytest.mark.parametrize(("is_admitted", "undone"), [(True, [("undo", "r1")]), (False, [])])
def test_the_charge_of_a_cancelled_request_is_undone(is_admitted: bool, undone: list[Any]) -> None:
    async def scenario(guarded: Guarded) -> list[Any]:
        task = guarded.start()
        await guarded.settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        guarded.reply(is_admitted=is_admitted)
        await guarded.settle()
        return [guarded.store.calls[1:], guarded.guard.counts.lost_calls]

    assert run(scenario, settings=PATIENT) == [undone, 0]


# -- undos that fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rules", "undone"), [(CLOSED, ["r1"]), (OPEN, [])])
def test_a_refused_request_whose_call_failed_is_undone_when_the_store_replies_again(
    rules: str, undone: list[str]
) -> None:
    async def scenario(guarded: Guarded) -> list[str]:
        await guarded.lose()
        guarded.store.takes[0].set_exception(LOST)
        await guarded.settle()
        assert not guarded.list_undone()
        await guarded.guard.open()
        await wait_on_loop_until(lambda: guarded.count_checks() >= 2, what="two checks")
        return guarded.list_undone()

    assert run(scenario, rules, FREQUENT) == undone


def test_an_undo_that_fails_is_tried_again_until_it_succeeds() -> None:
    async def scenario(guarded: Guarded) -> list[str]:
        await guarded.lose()
        guarded.store.problem = LOST
        guarded.reply()
        await guarded.settle()
        failed = guarded.list_undone()
        guarded.store.problem = None
        await guarded.guard.open()
        await wait_on_loop_until(lambda: guarded.count_checks() >= 3, what="three checks")
        return [*failed, "then", *guarded.list_undone()[len(failed) :]]

    assert run(scenario, CLOSED, FREQUENT) == ["r1", "then", "r1"]


def test_the_oldest_pending_undos_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "MAX_PENDING_UNDOS", 2)

    async def scenario(guarded: Guarded) -> tuple[list[str], int]:
        for number in range(3):
            await guarded.lose(f"r{number}")
            guarded.store.takes[-1].set_exception(LOST)
        await guarded.settle()
        await guarded.guard.open()
        await wait_on_loop_until(lambda: guarded.count_checks() >= 2, what="two checks")
        return guarded.list_undone(), guarded.guard.counts.unsettled

    assert run(scenario, CLOSED, FREQUENT) == (["r1", "r2"], 1)


# -- availability of the store -------------------------------------------------------------------------------------


def test_a_store_that_replies_to_a_check_again_is_called_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(guarded: Guarded) -> list[Any]:
        guarded.guard.start_unavailable()
        await guarded.lose()
        guarded.store.problem = LOST
        await guarded.guard.open()
        await wait_on_loop_until(lambda: guarded.count_checks() >= 2, what="checks fail")
        was_away = guarded.guard.counts.is_away
        guarded.store.problem = None
        await wait_on_loop_until(lambda: not guarded.guard.counts.is_away, what="the store is back")
        task = guarded.start("r2")
        await guarded.settle()
        guarded.reply()
        await task
        return [was_away, ("take", "r1") in guarded.store.calls, ("take", "r2") in guarded.store.calls]

    with caplog.at_level(logging.WARNING):
        assert run(scenario, settings=PATIENT_AND_FREQUENT) == [True, False, True]
    assert [record.getMessage() for record in caplog.records] == [
        "limiter store unavailable: requests are decided by the on_store_loss of each rule wait_ms=60000",
        "limiter store available again local_decisions=1 local_refusals=0",
    ]


@pytest.mark.parametrize(("check_every_ms", "is_checked"), [(2, True), (600_000, False)])
def test_an_available_store_is_checked_at_its_own_interval(check_every_ms: int, is_checked: bool) -> None:
    async def scenario(guarded: Guarded) -> bool:
        other = Guarded(CORE, FREQUENT)  # Its checks measure the time.
        await guarded.guard.open()
        await other.guard.open()
        await wait_on_loop_until(lambda: other.count_checks() >= 10, what="ten checks of the other store")
        await other.guard.close()
        return guarded.count_checks() > 0

    settings = GuardSettings(probe_every_ms=2, check_every_ms=check_every_ms)
    assert run(scenario, settings=settings) is is_checked


def test_a_store_that_turns_out_to_be_unsuitable_stays_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(guarded: Guarded) -> bool:
        guarded.guard.start_unavailable()
        guarded.store.problem = UnsuitableStore("it evicts keys")
        await guarded.guard.open()
        await wait_on_loop_until(lambda: guarded.count_checks() >= 2, what="two checks")
        return guarded.guard.counts.is_away

    with caplog.at_level(logging.ERROR):
        assert run(scenario, settings=FREQUENT)
    assert "limiter store unsuitable error=it evicts keys" in [record.getMessage() for record in caplog.records]


# -- the other calls -----------------------------------------------------------------------------------------------

OTHER_CALLS: dict[str, tuple[Callable[[Guarded], Awaitable[Any]], Any, Any]] = {
    "renew": (lambda guarded: guarded.guard.renew(["a", "b"]), 2, 0),
    "refund": (lambda guarded: guarded.guard.refund("a", RefundReason.FAULT), True, False),
    "add usage": (lambda guarded: guarded.guard.add_usage(guarded.call().charges, 3), None, None),
}


@pytest.mark.parametrize("name", OTHER_CALLS)
def test_another_call_returns_the_value_of_the_store(name: str) -> None:
    async def scenario(guarded: Guarded) -> list[Any]:
        return [await OTHER_CALLS[name][0](guarded), guarded.store.calls, guarded.guard.counts.lost_calls]

    sent = {
        "renew": ("renew", "a", "b"),
        "refund": ("refund", "a", RefundReason.FAULT),
        "add usage": ("add usage", ["core"], 3),
    }[name]
    assert run(scenario, settings=PATIENT) == [OTHER_CALLS[name][1], [sent], 0]


@pytest.mark.parametrize("name", OTHER_CALLS)
def test_another_call_without_a_reply_is_a_loss_and_returns_nothing(name: str) -> None:
    async def scenario(guarded: Guarded) -> list[Any]:
        guarded.store.problem = LOST
        value = await OTHER_CALLS[name][0](guarded)
        await guarded.settle()
        return [value, guarded.guard.counts.lost_calls, guarded.guard.counts.unsettled]

    assert run(scenario, settings=PATIENT) == [OTHER_CALLS[name][2], 1, 1]


@pytest.mark.parametrize("name", OTHER_CALLS)
def test_another_call_that_takes_too_long_is_a_loss_and_continues(name: str) -> None:
    async def scenario(guarded: Guarded) -> list[Any]:
        guarded.store.is_silent = True
        value = await OTHER_CALLS[name][0](guarded)
        counts = guarded.guard.counts
        seen = [value, counts.lost_calls, counts.unsettled]
        guarded.store.problem = LOST
        assert guarded.store.silent is not None
        guarded.store.silent.set_result(None)
        await guarded.settle()
        return [*seen, counts.lost_calls, counts.unsettled]

    assert run(scenario) == [OTHER_CALLS[name][2], 1, 0, 1, 1]


@pytest.mark.parametrize("name", OTHER_CALLS)
def test_no_other_call_is_made_during_an_outage(name: str) -> None:
    async def scenario(guarded: Guarded) -> list[Any]:
        guarded.guard.start_unavailable()
        return [await OTHER_CALLS[name][0](guarded), guarded.store.calls, guarded.guard.counts.unsettled]

    assert run(scenario, settings=PATIENT) == [OTHER_CALLS[name][2], [], 0]


@pytest.mark.parametrize(("is_away", "used"), [(False, 3), (True, 8)])
def test_a_reading_is_that_of_the_store_or_leaves_the_share_of_this_process(is_away: bool, used: int) -> None:
    async def scenario(guarded: Guarded) -> list[int]:
        if is_away:
            guarded.guard.start_unavailable()
        return [reading.used for reading in await guarded.guard.peek(guarded.call().charges)]

    assert run(scenario, settings=PATIENT) == [used]


def test_calls_of_operators_reach_the_store_during_an_outage_too() -> None:
    async def scenario(guarded: Guarded) -> tuple[int, list[Any]]:
        guarded.guard.start_unavailable()
        await guarded.guard.reset(guarded.call().charges)
        await guarded.guard.ban("token:t", 5)
        end_ms = await guarded.guard.get_ban_end_ms("token:t")
        return end_ms, guarded.store.calls

    calls = [("reset", ["core"]), ("ban", "token:t", 5), ("ban end", "token:t")]
    assert run(scenario, settings=PATIENT) == (7, calls)


def test_new_rules_apply_in_the_store_and_during_an_outage() -> None:
    async def scenario(guarded: Guarded) -> tuple[list[Any], list[bool]]:
        guarded.rules = read_rules(CORE.replace("10", "1"))
        await guarded.guard.set_rules(guarded.rules)
        guarded.limiter = Limiter(guarded.rules)
        guarded.guard.start_unavailable()
        return guarded.store.calls, [(await guarded.lose(f"r{number}")).is_admitted for number in range(2)]

    assert run(scenario, settings=PATIENT) == ([("set rules", 1)], [True, False])


def test_closing_waits_for_calls_that_still_run() -> None:
    async def scenario(guarded: Guarded) -> tuple[bool, bool]:
        guarded.store.is_silent = True
        await guarded.guard.refund("a", RefundReason.GONE)
        closing = asyncio.ensure_future(guarded.guard.close())
        await guarded.settle()
        was_closed = closing.done()
        assert guarded.store.silent is not None
        guarded.store.silent.set_result(None)
        await closing
        return was_closed, closing.done()

    assert run(scenario) == (False, True)
