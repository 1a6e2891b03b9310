"""Keeps a replica up to date with the log, across connection failures."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from wharf.cluster.engines.port import Batch, FollowerBehind, LogEngine, LogMisconfigured, LogUnavailable
from wharf.cluster.state import BatchApplication, OutOfOrder, Replica, ReplicaLoad
from wharf.cluster.state.formats import reject_newer_format
from wharf.cluster.state.replica import AdoptableRecords, AppliedChange
from wharf.cluster.state.tables import CLUSTER_FORMAT
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import World
from wharf.world.backoff import Backoff

log = logging.getLogger(__name__)

MIN_RETRY_DELAY_S: Final = 0.05
"""The first delay before a failed connection to the log is retried."""
MAX_RETRY_DELAY_S: Final = 0.5
"""The longest delay before a failed connection to the log is retried. A default read waits at least for this time when the log
returns, and must be answered within a second."""
MAX_CACHED_WRITES: Final = 10_000
"""How many recent write ids are cached, to find out whether a write with unknown outcome was committed."""

APPLY_TIMEOUT_S: Final = 15.0
"""How long a caller waits for the replica to reach an index. Must exceed the 10 s after which a hanging log fails."""

LOAD_ROWS_PER_STEP: Final = 500
"""Rows decoded before other tasks of the loop may run: a few milliseconds."""

APPLY_CHANGES_PER_STEP: Final = 500
"""Changes applied before other tasks of the loop may run."""

BatchListener = Callable[[Batch], None]
ChangeListener = Callable[[Batch, Sequence[AppliedChange]], None]
"""Receives a batch and, for each changed key, the record before and after it."""


class Follower:
    """Keeps the replica up to date: loads the state once, then applies every batch of the log in order.

    If the log no longer has the next batch, the state is loaded again. For each batch, `pre_apply_listeners` are called
    before it is applied, so they still see deleted records. Then `change_listeners` are called with the changed
    records, then `batch_listeners`. At every load, each of `load_preparers` is iterated over in steps of the event loop with
    a replica of the loaded state, to compute what depends on it. Then `self.replica` gets this state and
    `load_listeners` are called, in one step. Each of `load_finishers` is iterated over in steps after that, before the next
    batch is applied.
    """

    def __init__(self, world: World, engine: LogEngine, replica: Replica) -> None:
        self.replica = replica
        self.pre_apply_listeners: list[BatchListener] = []
        self.change_listeners: list[ChangeListener] = []
        self.batch_listeners: list[BatchListener] = []
        self.load_preparers: list[Callable[[Replica], Iterator[None]]] = []
        self.load_listeners: list[Callable[[], None]] = []
        self.load_finishers: list[Callable[[], Iterator[None]]] = []
        self.loaded_event = asyncio.Event()
        self.apply_lock = asyncio.Lock()
        """Held while the replica changes, except by steps that do not await. A caller that computes off the event loop
        holds it, so that the replica and the caches that depend on it do not change meanwhile. Arriving batches wait.
        """
        self._world = world
        self._engine = engine
        self._write_indexes: OrderedDict[str, int] = OrderedDict()
        self._adoptable: dict[str, AdoptableRecords] = {}
        self._waiters: dict[int, dict[asyncio.Future[None], None]] = {}
        self._backoff = Backoff(world.random, min_s=MIN_RETRY_DELAY_S, max_s=MAX_RETRY_DELAY_S)
        self._failure: Exception | None = None
        self._outage_reason = ""
        self._is_loading = False

    @property
    def outage_reason(self) -> str:
        """Why the log was unavailable at the last attempt; empty if it was available."""
        return self._outage_reason

    async def run(self) -> None:
        """Follow the log until cancelled.

        Raises `NewerFormat` if this program cannot read what the cluster writes now, and `DamagedRecord` if a stored
        record is damaged. A retry fixes neither, so every waiting caller fails too.
        """
        try:
            await self._run()
        except Exception as error:
            self._failure = error
            self._fail_waiters(error)
            raise

    async def _run(self) -> None:
        """Load and follow the log, and retry after every outage."""
        must_load = True
        while True:
            try:
                if self._outage_reason:
                    await self._engine.barrier()
                    log.info("log is available again")
                    self._outage_reason = ""
                if must_load:
                    self._is_loading = True
                    await self._load()
                    self._is_loading = must_load = False
                await self._follow()
            except (FollowerBehind, OutOfOrder) as gap:
                log.info("log feed interrupted, loading the state again reason=%s", gap)
                must_load = True
                await self._pause()
            except LogUnavailable as error:
                # Log an outage once, and a second time if it turns out to need an operator.
                should_log = not self._outage_reason or (
                    isinstance(error, LogMisconfigured) and self._outage_reason != str(error)
                )
                self._outage_reason = str(error)
                if should_log:
                    log.warning("log unavailable, will retry reason=%s", error)
                await self._pause()

    async def _pause(self) -> None:
        """Wait before the next attempt. The delay grows, and is reset when a batch arrives."""
        await asyncio.sleep(self._backoff.next_delay_s())

    async def _load(self) -> None:
        """Load the whole state from the log into the replica. Other tasks run in between.

        Raises `NewerFormat` if this program cannot read what the cluster writes.
        """
        self._adoptable.clear()  # The load includes these writes, so their batches will not arrive.
        load = self._engine.load()
        replica_load = ReplicaLoad(self.replica)
        async for rows in load.iter_slices():
            for start in range(0, len(rows), LOAD_ROWS_PER_STEP):
                for _ in replica_load.add_in_steps(rows[start : start + LOAD_ROWS_PER_STEP]):
                    await asyncio.sleep(0)
                await asyncio.sleep(0)
        position = await load.get_position()
        loaded = replica_load.view_state()
        for prepare in self.load_preparers:
            for _ in prepare(loaded):
                await asyncio.sleep(0)
        async with self.apply_lock:
            steps = replica_load.finish_in_steps(position)
            next(steps, None)
            reject_newer_format(self.replica)
            # No await before this: the listeners keep caches that must match the replica at all times.
            for listener in self.load_listeners:
                listener()
            self.loaded_event.set()
            self._release_waiters()
            for finish in self.load_finishers:
                for _ in finish():
                    await asyncio.sleep(0)
            for _ in steps:
                await asyncio.sleep(0)
            del steps
        for _ in replica_load.release_replaced_in_steps():
            await asyncio.sleep(0)

    async def _follow(self) -> None:
        """Apply each batch as it arrives, call the listeners, then wake the watches of changed records."""
        changes = 0
        async for batch in self._engine.follow(self.replica.index):
            changes += len(batch.changes)
            if changes > APPLY_CHANGES_PER_STEP:  # Many small batches at once must not block the loop either.
                changes = len(batch.changes)
                await asyncio.sleep(0)
            application = BatchApplication(self.replica, batch, self._adoptable.pop(batch.id, None))
            for _ in application.decode_in_steps():
                await asyncio.sleep(0)
            async with self.apply_lock:
                for listener in self.pre_apply_listeners:
                    listener(batch)
                application.apply_changes()
                try:
                    # No await before this: the listeners keep caches that must match the replica at all times.
                    for change_listener in self.change_listeners:
                        change_listener(batch, application.applied_changes)
                    self._publish(batch)
                finally:
                    for _ in application.wake_in_steps():
                        await asyncio.sleep(0)

    def _publish(self, batch: Batch) -> None:
        """Record the index of an applied batch, wake callers that wait for it, and call `batch_listeners`.

        Raises `NewerFormat` if the batch activates a record format that this program cannot read.
        """
        if self.replica.get_last_change(CLUSTER_FORMAT) == batch.index:
            reject_newer_format(self.replica)
        self._backoff.reset()
        self._write_indexes[batch.id] = batch.index
        if len(self._write_indexes) > MAX_CACHED_WRITES:
            self._write_indexes.popitem(last=False)
        if self._waiters:
            self._release_waiters()
        for listener in self.batch_listeners:
            listener(batch)

    async def wait_until_applied(self, index: int) -> None:
        """Wait until the replica has applied every batch up to `index`.

        Raises `Refusal` if the follower has failed or the replica does not reach the index within `APPLY_TIMEOUT_S`.
        """
        if self.replica.index >= index:
            return
        if self._failure is not None:
            raise _build_failure_refusal(self._failure)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters.setdefault(index, {})[future] = None
        timer = loop.call_later(APPLY_TIMEOUT_S, self._time_out_waiter, index, future)
        try:
            await future
        finally:
            timer.cancel()
            self._remove_waiter(index, future)

    def _time_out_waiter(self, index: int, future: asyncio.Future[None]) -> None:
        """Raise a `Refusal` in the caller that waits for `index` with this future, because its time is over."""
        if not future.done():
            if self._is_loading:
                text = f"this server still loads the state of the log again; index {index} was requested, retry"
                future.set_exception(Refusal(RefusalCode.UNAVAILABLE, text))
                return
            text = (
                f"this server is at index {self.replica.index} and has received no newer batch for "
                f"{APPLY_TIMEOUT_S:g} s; index {index} was requested"
            )
            future.set_exception(Refusal(RefusalCode.UNAVAILABLE, text))

    @property
    def waiter_count(self) -> int:
        """How many callers wait for the replica to reach an index."""
        return sum(map(len, self._waiters.values()))

    def _remove_waiter(self, index: int, future: asyncio.Future[None]) -> None:
        """Remove a caller that no longer waits for `index`."""
        futures = self._waiters.get(index)
        if futures is not None:
            futures.pop(future, None)
            if not futures:
                del self._waiters[index]

    def _fail_waiters(self, error: Exception) -> None:
        """Raise a `Refusal` in every waiting caller, because the follower has stopped."""
        for futures in self._waiters.values():
            for future in futures:
                if not future.done():
                    future.set_exception(_build_failure_refusal(error))

    def cache_write(self, write_id: str, adoptable: AdoptableRecords) -> None:
        """Store the records of a write that this process commits, so that its batch need not be decoded when it
        arrives.
        """
        if adoptable:
            self._adoptable[write_id] = adoptable

    def discard_cached_write(self, write_id: str) -> None:
        """Discard the records of a write that has arrived or will not arrive."""
        self._adoptable.pop(write_id, None)

    def find_write_index(self, write_id: str) -> int | None:
        """Return the log index of a recent write, or `None` if it is not in the cache.

        `None` does not mean that the write was not committed.
        """
        return self._write_indexes.get(write_id)

    def _release_waiters(self) -> None:
        """Wake every caller whose index the replica has reached."""
        for index in [index for index in self._waiters if index <= self.replica.index]:
            for future in self._waiters.pop(index):
                if not future.done():
                    future.set_result(None)


def _build_failure_refusal(error: Exception) -> Refusal:
    return Refusal(RefusalCode.UNAVAILABLE, f"this server can no longer follow the log: {error}")
