"""A wrapper around a remote store: a timeout for every call, a circuit breaker, and local decisions during an outage.

A call without a reply in time is decided by the outage policies of the rules. Only the time in which the store has a call
counts as its time: a call that waits in a queue of this process, for a busy event loop, or for a processor of the machine, says
nothing about the store. When the late reply arrives, its charge stays if the request was admitted and is undone if it was
refused. While the breaker is open, requests do not call the store.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterable
from enum import Enum
from typing import Any, Final

import msgspec

from wharf.limits.core.counting.counters import Counters
from wharf.limits.core.plans import Charge
from wharf.limits.core.rule import RuleSet
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult
from wharf.limits.stores.fallback import FallbackCounters
from wharf.limits.stores.loop_pauses import LoopPauses
from wharf.limits.stores.port import RefundReason, RemoteStore, StoreUnavailable, UnsuitableStore
from wharf.world import World
from wharf.world.backoff import draw_delay_s
from wharf.world.tasks import cancel_tasks


class BreakerState(Enum):
    """The state of the circuit breaker: whether requests call the store."""

    CLOSED = "closed"
    """Requests call the store."""
    OPEN = "open"
    """No request calls it. Probes, which no request waits for, detect when it is back."""


class Breaker(msgspec.Struct):
    """The circuit breaker of a remote store: it opens after several consecutive calls without a reply in time.

    It has only the state; `GuardedStore` checks whether an unavailable store is back.
    """

    max_losses: int = 3
    """This number of consecutive calls without a reply in time opens the breaker."""
    state: BreakerState = BreakerState.CLOSED
    losses: int = 0
    """Consecutive calls without a reply in time."""
    open_count: int = 0
    """How often it has opened."""

    @property
    def is_open(self) -> bool:
        return self.state is BreakerState.OPEN

    def record_reply(self) -> None:
        """Record that the store replied in time. This does not close an open breaker; only a probe does."""
        self.losses = 0

    def record_loss(self) -> bool:
        """Record a call without a reply in time. Return whether this opened the breaker."""
        self.losses += 1
        if self.is_open or self.losses < self.max_losses:
            return False
        self.state = BreakerState.OPEN
        self.open_count += 1
        return True

    def record_probe(self) -> None:
        """Record that the store replied to a probe, and close the breaker."""
        self.state = BreakerState.CLOSED
        self.losses = 0


log = logging.getLogger(__name__)

LONGEST_CLOSE_S: Final = 2.0
"""How long `close` waits for charges whose results have not arrived: longer than a store that works needs."""
MAX_PENDING_UNDOS: Final = 10_000
"""Limits the memory for charges that must be undone when the store is back; the oldest are dropped."""


MAX_QUEUE_WAIT_S: Final = 1.0
"""How much longer than `wait_ms` a request waits while the store replies in time, such as in the queue after a burst. Then it
is decided locally. Protects callers of an overloaded process; shorter than the timeouts of the connections to the store.
"""
LATE_SHARE: Final = 0.9
"""The store is late if its oldest call waits for this share of `wait_ms`. A call is sent a moment after its timeout begins."""
MAX_LOOP_DELAY_S: Final = 0.010
"""If a timeout is handled later than this, the event loop was busy: replies may have arrived that were not read yet."""
RECHECK_INTERVAL_S: Final = 0.005
"""The shortest time until the next check whether the store is late; enough for the event loop to read replies."""


class GuardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long requests wait for a remote store, and when it counts as unavailable."""

    wait_ms: int = 50
    """The longest time that a request waits for the store."""
    losses_most: int = 3
    """The number of consecutive calls without a reply in time that opens the breaker."""
    probe_every_ms: int = 500
    """The longest interval of probes while the store is unavailable. Each one is random, at least half as long."""
    check_every_ms: int = 5_000
    """The interval of checks while the store is available."""
    fallback_processes: int = 8
    """The number of processes that share each limit during an outage."""


class GuardCounts(msgspec.Struct):
    """The counts of a `GuardedStore`, for the metrics.

    A late charge is one that a remote store made after the request was already decided in this process.
    """

    lost_calls: int = 0
    """Calls without a reply in time."""
    queue_timeouts: int = 0
    """Calls that waited too long in this process, although the store replied in time. They do not open the breaker."""
    local_decisions: int = 0
    """Requests that were decided in this process, because the store was unavailable or too slow."""
    local_refusals: int = 0
    """Those of them that were refused."""
    late_kept: int = 0
    """Late charges that were kept, because the request was admitted locally."""
    late_undone: int = 0
    """Late charges that were undone, because the request was refused locally."""
    unsettled: int = 0
    """Charges and releases whose outcome at the store stays unknown."""
    outages: int = 0
    """How often the store became unavailable."""
    is_away: bool = False
    """Whether the store is unavailable."""


class GuardedStore:
    """A wrapper around a remote store: limits how long requests wait for it, and decides locally during an outage."""

    def __init__(self, store: RemoteStore, rules: RuleSet, settings: GuardSettings, world: World) -> None:
        self.counts: Final = GuardCounts()
        self.fallback: Final = FallbackCounters(rules, process_count=settings.fallback_processes)
        self._store = store
        self._settings = settings
        self._world = world
        self._breaker = Breaker(max_losses=settings.losses_most)
        self._timeout_s = settings.wait_ms / 1_000
        self._pauses = LoopPauses()
        # Calls whose result did not arrive in time, by request id, and those of them whose request has ended since.
        self._late_takes: dict[str, asyncio.Future[TakeResult]] = {}
        self._ended_early: set[str] = set()
        self._pending_undos: deque[StoreCall] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watcher: asyncio.Task[None] | None = None

    @property
    def local_counters(self) -> Counters | None:
        return None

    def now_ms(self) -> int:
        return self._world.now_ns() // 1_000_000

    async def open(self) -> None:
        self._watcher = self._world.start_task(self._keep_watching(), name="limits: watch the store")

    def start_unavailable(self) -> None:
        """Open the breaker, because the store could not be reached at the start."""
        while not self._breaker.is_open:
            self._record_loss()

    async def close(self) -> None:
        """Stop checking the store, and wait for running calls, and for a short time for late charges."""
        if self._watcher is not None:
            await cancel_tasks(self._watcher)
        if self._late_takes:
            await asyncio.wait(self._late_takes.values(), timeout=LONGEST_CLOSE_S)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- deciding --------------------------------------------------------------------------------------------------

    async def take(self, call: StoreCall) -> TakeResult:
        """Return the store's result, or a local one if the store is unavailable or too slow."""
        result = self._store.take_now(call)  # Prefetched quota is valid during an outage too.
        if result is not None:
            return result
        if self._breaker.is_open:
            return self._decide_locally(call)
        pending = self._store.start_take(call)
        try:
            await self._wait_for(pending)
        except asyncio.CancelledError:
            self._settle_late_take(
                call, pending, was_admitted=False
            )  # The caller disconnected before the request was admitted.
            raise
        if pending.done() and not isinstance(pending.exception(), StoreUnavailable):
            result = pending.result()
            self._breaker.record_reply()
            self.fallback.record_result(call, result)
            return result
        self._record_missing_reply(pending)
        result = self._decide_locally(call)
        self._settle_late_take(call, pending, was_admitted=result.is_admitted)
        return result

    async def _wait_for(self, pending: "asyncio.Future[Any]") -> None:
        """Wait until a call has ended, or until the store is late. A late call continues.

        While the store replies to other calls in time, wait longer: the call is in a queue of this process.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        due_s = loop.time() + self._timeout_s
        end_s = due_s + MAX_QUEUE_WAIT_S
        timer = loop.call_at(due_s, lambda: check())

        def wake(_: object = None) -> None:
            """End the wait, after the result or the timeout."""
            if not waiter.done():
                waiter.set_result(None)

        def check() -> None:
            """End the wait if the store is late; else check again when it could be."""
            nonlocal due_s, timer
            now_s = loop.time()
            was_loop_busy = now_s - due_s > MAX_LOOP_DELAY_S
            if now_s >= end_s or self._breaker.is_open or (self._is_store_late() and not was_loop_busy):
                wake()
                return
            left_s = 0.0 if was_loop_busy else self._timeout_s - self._get_store_wait_s()
            due_s = min(end_s, now_s + max(RECHECK_INTERVAL_S, left_s))
            timer = loop.call_at(due_s, check)

        pending.add_done_callback(wake)
        self._pauses.begin_wait()
        try:
            await waiter
        finally:
            self._pauses.end_wait()
            timer.cancel()
            pending.remove_done_callback(wake)

    def _is_store_late(self) -> bool:
        """Return whether the store has left a call without a reply for about the whole timeout."""
        return self._get_store_wait_s() >= self._timeout_s * LATE_SHARE

    def _get_store_wait_s(self) -> float:
        """Return for how long the oldest call waits for the store, without the pauses in which no reply could be read."""
        wait_s = self._store.get_longest_wait_s()
        return wait_s - self._pauses.get_paused_s(wait_s)

    def _record_missing_reply(self, pending: "asyncio.Future[Any]") -> None:
        """Count a call without a result: as a loss if the store failed or is late, else as a timeout in the queue."""
        if pending.done() or self._breaker.is_open or self._is_store_late():
            self._record_loss()
        else:
            self.counts.queue_timeouts += 1

    def _decide_locally(self, call: StoreCall) -> TakeResult:
        """Return the result of a call by the fallback counters of this process, and count the decision."""
        result = self.fallback.take(call, self.now_ms())
        self.counts.local_decisions += 1
        self.counts.local_refusals += not result.is_admitted
        return result

    def _settle_late_take(self, call: StoreCall, pending: "asyncio.Future[TakeResult]", *, was_admitted: bool) -> None:
        """Arrange that a late charge is undone when the store's result arrives, unless the request was admitted.

        If the request was admitted and has ended by then, its slots at the store are released.
        """

        def settle(finished: "asyncio.Future[TakeResult]") -> None:
            """Keep, release or undo what the store has charged after the request was decided in this process."""
            self._late_takes.pop(call.id, None)
            has_ended = call.id in self._ended_early
            self._ended_early.discard(call.id)
            if finished.cancelled() or finished.exception() is not None:
                if not was_admitted:
                    self._undo_later(call)
                return
            if not finished.result().is_admitted:
                return
            if not was_admitted:
                self.counts.late_undone += 1
                self._start_task(self._undo(call))
                return
            self.counts.late_kept += 1
            if has_ended:
                self._start_release(call.id)

        self._late_takes[call.id] = pending
        pending.add_done_callback(settle)

    def _undo_later(self, call: StoreCall) -> None:
        """Queue a charge that must be undone when the store is available again. If the queue is full, drop the oldest."""
        if len(self._pending_undos) >= MAX_PENDING_UNDOS:
            self._pending_undos.popleft()
            self.counts.unsettled += 1
        self._pending_undos.append(call)

    async def _undo(self, call: StoreCall) -> None:
        """Undo the charges of a call at the store; queue the call if the store is unavailable."""
        try:
            await self._store.undo(call)
        except StoreUnavailable:
            self._undo_later(call)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in a task that `close` waits for."""
        task = self._world.start_task(work, name="limits: settle")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- availability of the store --------------------------------------------------------------------------------

    def _record_loss(self) -> None:
        """Count a call without a reply in time, and log if that opened the breaker."""
        self.counts.lost_calls += 1
        if not self._breaker.record_loss():
            return
        self.counts.outages += 1
        self.counts.is_away = True
        log.warning(
            "limiter store unavailable: requests are decided by the on_store_loss of each rule wait_ms=%d",
            self._settings.wait_ms,
        )

    async def _keep_watching(self) -> None:
        """Check periodically whether the store replies, more often while it is unavailable.

        After a reply, close the breaker and retry the pending undos.
        """
        since_check_ms = 0
        while True:
            # Processes that lost a store together must not probe it together.
            interval_s = self._settings.probe_every_ms / 1_000
            delay_s = draw_delay_s(self._world.random, 1, min_s=interval_s, max_s=interval_s)
            await asyncio.sleep(delay_s)
            since_check_ms += round(delay_s * 1_000)
            if not self._breaker.is_open and since_check_ms < self._settings.check_every_ms:
                continue
            since_check_ms = 0
            probe = self._world.start_task(self._store.check(), name="limits: probe the store")
            self._tasks.add(probe)
            probe.add_done_callback(self._tasks.discard)
            await asyncio.wait([probe])  # It ends by its own timeout; a second probe would add nothing.
            problem = probe.exception()
            if isinstance(problem, UnsuitableStore):
                log.error("limiter store unsuitable error=%s", problem)
            if isinstance(problem, StoreUnavailable | UnsuitableStore):
                continue
            probe.result()
            if self._breaker.is_open:
                self._breaker.record_probe()
                self.counts.is_away = False
                log.warning(
                    "limiter store available again local_decisions=%d local_refusals=%d",
                    self.counts.local_decisions,
                    self.counts.local_refusals,
                )
            await self._retry_pending_undos()

    async def _retry_pending_undos(self) -> None:
        """Undo each queued charge at the store. Those that fail again are queued for the next check."""
        for _ in range(len(self._pending_undos)):
            if self._breaker.is_open or not self._pending_undos:
                return
            await self._undo(self._pending_undos.popleft())

    # -- the rest of the port --------------------------------------------------------------------------------------

    async def _run_with_timeout(self, work: Coroutine[Any, Any, object], name: str) -> object | None:
        """Run a call of the store, and return its result, or `None` if the store is unavailable or too slow.

        While the breaker is open, the call is not made. A slow call continues in the background.
        """
        if self._breaker.is_open:
            work.close()
            return None
        task = self._world.start_task(work, name=f"limits: {name}")
        self._tasks.add(task)  # type: ignore[arg-type] # The set ignores what the task returns.
        task.add_done_callback(self._discard_task)
        await self._wait_for(task)
        if not task.done() or isinstance(task.exception(), StoreUnavailable):
            self._record_missing_reply(task)
            return None
        self._breaker.record_reply()
        return task.result()

    def _discard_task(self, task: "asyncio.Task[object]") -> None:
        """Stop tracking a finished task, and count it as unsettled if the store was unavailable."""
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(task.exception(), StoreUnavailable):
            self.counts.unsettled += 1

    def _start_release(self, request_id: str) -> None:
        """Send the release of a request without waiting for the reply. If it is lost, the leases expire."""
        for pending in self._store.start_release(request_id):
            pending.add_done_callback(self._on_released)

    def _on_released(self, pending: "asyncio.Future[Any]") -> None:
        if pending.exception() is not None:
            self.counts.unsettled += 1

    async def release(self, request_id: str) -> None:
        """End a request where it was admitted: at the store, or in the fallback counters of this process.

        If the store has not replied to its charge yet, the store is called after that reply.
        """
        was_admitted_here = self.fallback.release(request_id, self.now_ms())
        if was_admitted_here and request_id in self._late_takes:
            self._ended_early.add(request_id)
            return
        self._start_release(request_id)

    async def renew(self, request_ids: Iterable[str]) -> int:
        revived = await self._run_with_timeout(self._store.renew(request_ids), "renew")
        return revived if isinstance(revived, int) else 0

    async def refund(self, request_id: str, reason: RefundReason) -> bool:
        return bool(await self._run_with_timeout(self._store.refund(request_id, reason), "refund"))

    async def add_usage(self, charges: Iterable[Charge], amount: int) -> None:
        await self._run_with_timeout(self._store.add_usage(charges, amount), "add usage")

    async def peek(self, charges: Iterable[Charge]) -> tuple[CounterReading, ...]:
        """Return the values of counters from the store, or the last known ones if the store is unavailable."""
        charges = tuple(charges)
        readings = await self._run_with_timeout(self._store.peek(charges), "peek")
        if isinstance(readings, tuple):
            return readings
        return tuple(self.fallback.peek(charge, self.now_ms()) for charge in charges)

    async def reset(self, charges: Iterable[Charge]) -> None:
        """Reset counters for an operator. Raises `StoreUnavailable` during an outage."""
        await self._store.reset(charges)

    async def ban(self, subject: str, until_ms: int) -> None:
        await self._store.ban(subject, until_ms)

    async def get_ban_end_ms(self, subject: str) -> int:
        """Return the end of a ban for an operator. Raises `StoreUnavailable` during an outage."""
        return await self._store.get_ban_end_ms(subject)

    async def set_rules(self, rules: RuleSet) -> None:
        self.fallback.set_rules(rules)
        await self._store.set_rules(rules)
