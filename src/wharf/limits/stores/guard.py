"""When a store is held for away, and when it is tried again. A pure machine.

A store that may be away or slow, and nobody waits for it longer than was said.

What has no answer in time is decided by the rules' own policies; the answer that comes late is settled: a charge stays
if the request was admitted, and is taken back if it was refused. While the store is away no request asks it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterable
from enum import Enum
from typing import Any, Final, Protocol

import msgspec

from wharf.limits.core.plans import Charge
from wharf.limits.core.rule import RuleSet
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult
from wharf.limits.stores.fallback import FallbackCounters
from wharf.limits.stores.port import RefundReason, Store, StoreUnavailable, UnsuitableStore
from wharf.world import World


class BreakerState(Enum):
    CLOSED = "closed"
    """Requests ask the store."""
    OPEN = "open"
    """No request asks. One probe, which no request waits for, finds out when the store is back."""


class Breaker(msgspec.Struct):
    max_losses: int = 3
    """So many losses running, and the store is held for away."""
    state: BreakerState = BreakerState.CLOSED
    losses: int = 0
    open_count: int = 0
    """How often it has opened."""

    @property
    def is_open(self) -> bool:
        return self.state is BreakerState.OPEN

    def record_answer(self) -> None:
        """An answer in time. Late ones of before say nothing about now, so an open breaker stays open."""
        self.losses = 0

    def record_loss(self) -> bool:
        """No answer in time. True if this opened it."""
        self.losses += 1
        if self.is_open or self.losses < self.max_losses:
            return False
        self.state = BreakerState.OPEN
        self.open_count += 1
        return True

    def record_probe(self) -> None:
        """The store has answered a probe."""
        self.state = BreakerState.CLOSED
        self.losses = 0


log = logging.getLogger(__name__)

MAX_PENDING_UNDOS: Final = 10_000


class GuardSettings(msgspec.Struct, frozen=True, kw_only=True):
    wait_ms: int = 50
    """No request waits for the store longer than this."""
    losses_most: int = 3
    probe_every_ms: int = 500
    check_every_ms: int = 5_000
    fallback_processes: int = 8
    """Among how many processes a limit is shared while nobody counts for all of them."""


class GuardCounts(msgspec.Struct):
    """What the metrics show."""

    lost_calls: int = 0
    """Calls without an answer in time."""
    local_decisions: int = 0
    local_refusals: int = 0
    late_kept: int = 0
    late_undone: int = 0
    unsettled: int = 0
    """Outcomes that were never learned, beyond what is remembered."""
    outages: int = 0
    is_away: bool = False


class RemoteStore(Store, Protocol):
    """A store that is asked over a network."""

    def take_now(self, call: StoreCall) -> TakeResult | None: ...
    def start_take(self, call: StoreCall) -> "asyncio.Future[TakeResult]": ...
    def start_release(self, request_id: str) -> "list[asyncio.Future[Any]]": ...
    async def undo(self, call: StoreCall) -> None: ...
    async def check(self) -> None: ...


class GuardedStore:
    def __init__(self, store: RemoteStore, rules: RuleSet, settings: GuardSettings, world: World) -> None:
        self.counts: Final = GuardCounts()
        self.fallback: Final = FallbackCounters(rules, process_count=settings.fallback_processes)
        self._store = store
        self._settings = settings
        self._world = world
        self._breaker = Breaker(max_losses=settings.losses_most)
        self._wait_s = settings.wait_ms / 1_000
        self._here: dict[str, bool] = {}  # Requests decided here: whether they were admitted.
        self._late: dict[str, asyncio.Future[TakeResult]] = {}
        self._ended_early: set[str] = set()
        self._to_undo: deque[StoreCall] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None

    def now_ms(self) -> int:
        return self._world.now_ns() // 1_000_000

    async def open(self) -> None:
        self._watch = self._world.start_task(self._keep_watching(), name="limits: watch the store")

    def start_unavailable(self) -> None:
        """The store was not there when we began: nobody asks it until it is."""
        while not self._breaker.is_open:
            self._note_loss()

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- deciding --------------------------------------------------------------------------------------------------

    async def take(self, call: StoreCall) -> TakeResult:
        held = self._store.take_now(call)  # Quota that was charged before is good while the store is away, too.
        if held is not None:
            return held
        if self._breaker.is_open:
            return self._decide_here(call)
        asked = self._store.start_take(call)
        try:
            taken = await self._within_time(asked)
        except asyncio.CancelledError:
            self._settle_when_known(call, asked, was_admitted=False)  # The caller is gone before it was let in.
            raise
        if taken is not None:
            self._breaker.record_answer()
            self.fallback.record_result(call, taken)
            return taken
        self._note_loss()
        decided = self._decide_here(call)
        self._settle_when_known(call, asked, was_admitted=decided.is_admitted)
        return decided

    async def _within_time(self, asked: "asyncio.Future[TakeResult]") -> TakeResult | None:
        """The answer, or None when there is none in time. What was asked goes on in any case."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def wake(_: object = None) -> None:
            if not waiter.done():
                waiter.set_result(None)

        timer = loop.call_later(self._wait_s, wake)
        asked.add_done_callback(wake)
        try:
            await waiter
        finally:
            timer.cancel()
            asked.remove_done_callback(wake)
        if not asked.done():
            return None
        return None if isinstance(asked.exception(), StoreUnavailable) else asked.result()

    def _decide_here(self, call: StoreCall) -> TakeResult:
        taken = self.fallback.take(call, self.now_ms())
        self.counts.local_decisions += 1
        self.counts.local_refusals += not taken.is_admitted
        if taken.is_admitted:
            self._here[call.id] = True
        return taken

    def _settle_when_known(self, call: StoreCall, asked: "asyncio.Future[TakeResult]", *, was_admitted: bool) -> None:
        def settle(done: "asyncio.Future[TakeResult]") -> None:
            self._late.pop(call.id, None)
            has_ended = call.id in self._ended_early
            self._ended_early.discard(call.id)
            if done.cancelled() or done.exception() is not None:
                if not was_admitted:
                    self._undo_later(call)
                return
            if not done.result().is_admitted:
                return
            if not was_admitted:
                self.counts.late_undone += 1
                self._start(self._undo(call))
                return
            self.counts.late_kept += 1
            if has_ended:
                self._release_quietly(call.id)

        self._late[call.id] = asked
        asked.add_done_callback(settle)

    def _undo_later(self, call: StoreCall) -> None:
        if len(self._to_undo) >= MAX_PENDING_UNDOS:
            self._to_undo.popleft()
            self.counts.unsettled += 1
        self._to_undo.append(call)

    async def _undo(self, call: StoreCall) -> None:
        try:
            await self._store.undo(call)
        except StoreUnavailable:
            self._undo_later(call)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._world.start_task(work, name="limits: settle")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- whether the store is there --------------------------------------------------------------------------------

    def _note_loss(self) -> None:
        self.counts.lost_calls += 1
        if not self._breaker.record_loss():
            return
        self.counts.outages += 1
        self.counts.is_away = True
        log.warning(
            "The store of the limiter does not answer within %d ms: limits are decided here, by each rule's on_store_loss",
            self._settings.wait_ms,
        )

    async def _keep_watching(self) -> None:
        """Look now and then whether the store is there; often while it is away, and no request waits for that."""
        quiet_ms = 0
        while True:
            await asyncio.sleep(self._settings.probe_every_ms / 1_000)
            quiet_ms += self._settings.probe_every_ms
            if not self._breaker.is_open and quiet_ms < self._settings.check_every_ms:
                continue
            quiet_ms = 0
            probe = self._world.start_task(self._store.check(), name="limits: probe the store")
            self._tasks.add(probe)
            probe.add_done_callback(self._tasks.discard)
            await asyncio.wait([probe])  # It ends by its own time-out; another beside it would tell no more.
            problem = probe.exception()
            if isinstance(problem, UnsuitableStore):
                log.error("The store of the limiter is there and is not used: %s", problem)
            if isinstance(problem, StoreUnavailable | UnsuitableStore):
                continue
            probe.result()
            if self._breaker.is_open:
                self._breaker.record_probe()
                self.counts.is_away = False
                log.warning(
                    "The store of the limiter is back: %d requests were decided here so far, %d of them refused",
                    self.counts.local_decisions,
                    self.counts.local_refusals,
                )
            await self._undo_what_waits()

    async def _undo_what_waits(self) -> None:
        """Each once: what cannot be undone now is put behind the others, and waits for the next look."""
        for _ in range(len(self._to_undo)):
            if self._breaker.is_open or not self._to_undo:
                return
            await self._undo(self._to_undo.popleft())

    # -- the rest of the port --------------------------------------------------------------------------------------

    async def _bounded(self, work: Coroutine[Any, Any, object], name: str) -> object | None:
        """What it comes to, or None when the store is away or slow: then it goes on by itself."""
        if self._breaker.is_open:
            work.close()
            return None
        task = self._world.start_task(work, name=f"limits: {name}")
        self._tasks.add(task)  # type: ignore[arg-type] # What it returns is not looked at there.
        task.add_done_callback(self._forget)
        await asyncio.wait([task], timeout=self._wait_s)
        if not task.done() or isinstance(task.exception(), StoreUnavailable):
            self._note_loss()
            return None
        return task.result()

    def _forget(self, task: "asyncio.Task[object]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(task.exception(), StoreUnavailable):
            self.counts.unsettled += 1

    def _release_quietly(self, request_id: str) -> None:
        """Nobody waits for a slot to be free; one whose release is lost runs out by itself."""
        for asked in self._store.start_release(request_id):
            asked.add_done_callback(self._note_release)

    def _note_release(self, asked: "asyncio.Future[Any]") -> None:
        if asked.exception() is not None:
            self.counts.unsettled += 1

    async def release(self, request_id: str) -> None:
        if self._here.pop(request_id, False):
            self.fallback.release(request_id, self.now_ms())
            if request_id in self._late:
                self._ended_early.add(request_id)
                return
        self._release_quietly(request_id)

    async def renew(self, request_ids: Iterable[str]) -> int:
        revived = await self._bounded(self._store.renew(request_ids), "renew")
        return revived if isinstance(revived, int) else 0

    async def refund(self, request_id: str, reason: RefundReason) -> bool:
        return bool(await self._bounded(self._store.refund(request_id, reason), "give back"))

    async def add_usage(self, charges: Iterable[Charge], amount: int) -> None:
        await self._bounded(self._store.add_usage(charges, amount), "spend")

    async def peek(self, charges: Iterable[Charge]) -> tuple[CounterReading, ...]:
        charges = tuple(charges)
        readings = await self._bounded(self._store.peek(charges), "peek")
        if isinstance(readings, tuple):
            return readings
        return tuple(self.fallback.peek(charge, self.now_ms()) for charge in charges)

    async def reset(self, charges: Iterable[Charge]) -> None:
        """For operators: who asks for it is told when the store is away."""
        await self._store.reset(charges)

    async def ban(self, subject: str, until_ms: int) -> None:
        await self._store.ban(subject, until_ms)

    async def get_ban_end_ms(self, subject: str) -> int:
        """For operators: who asks for it is told when the store is away."""
        return await self._store.get_ban_end_ms(subject)

    async def set_rules(self, rules: RuleSet) -> None:
        self.fallback.set_rules(rules)
        await self._store.set_rules(rules)
