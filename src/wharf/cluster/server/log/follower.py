"""Keeps a replica at the head of the log, whatever happens to the connection."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from wharf.cluster.engines.port import Batch, FollowerBehind, LogEngine, LogMisconfigured, LogUnavailable
from wharf.cluster.state import BatchApplication, OutOfOrder, Replica, ReplicaLoad
from wharf.cluster.state.formats import reject_newer_format
from wharf.cluster.state.replica import AdoptableRecords, AppliedChange
from wharf.cluster.state.tables import CLUSTER_FORMAT
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import World

log = logging.getLogger(__name__)

MIN_RETRY_DELAY_S: Final = 0.05
MAX_RETRY_DELAY_S: Final = 2.0
MAX_CACHED_WRITES: Final = 10_000
"""Ids of the newest writes kept to tell whether one of unknown outcome happened."""

APPLY_TIMEOUT_S: Final = 15.0
"""How long anybody waits for the replica to come as far as the log. A log that hangs is noticed within ten seconds."""

LOAD_ROWS_PER_STEP: Final = 500
"""Rows taken in one step of a load: a few milliseconds."""

APPLY_CHANGES_PER_STEP: Final = 500
"""Changes of several batches taken in before others get their turn."""

BatchListener = Callable[[Batch], None]
ChangeListener = Callable[[Batch, Sequence[AppliedChange]], None]
"""Hears of a batch with what became of each of its keys."""


class Follower:
    """Loads the state once, then applies every batch in order; loads again when it has fallen behind the log's tail.

    Listeners hear of every batch after it is applied, and of every load by `on_load`; before them, those in `takers`,
    who are told what became of each key. Those in `before` hear of a batch while the state is still as it was: what it
    takes away can be seen then for the last time.
    """

    def __init__(self, world: World, engine: LogEngine, replica: Replica) -> None:
        self.replica = replica
        self.pre_apply_listeners: list[BatchListener] = []
        self.change_listeners: list[ChangeListener] = []
        self.batch_listeners: list[BatchListener] = []
        self.load_listeners: list[Callable[[], None]] = []
        self.loaded_event = asyncio.Event()
        self._world = world
        self._engine = engine
        self._writes: OrderedDict[str, int] = OrderedDict()
        self._held: dict[str, AdoptableRecords] = {}
        self._reached: dict[int, dict[asyncio.Future[None], None]] = {}
        self._pause_s = MIN_RETRY_DELAY_S
        self._failure: Exception | None = None
        self._away = ""
        """Why the log was out of reach when it was asked last; empty when it answered."""

    async def run(self) -> None:
        """Until cancelled. Raises `NewerFormat` when this program cannot read what the cluster writes now, `Damaged`
        when what it wrote is broken: neither gets better by trying again, and whoever waits is told.
        """
        try:
            await self._run()
        except Exception as error:
            self._failure = error
            self._give_up_waiters(error)
            raise

    async def _run(self) -> None:
        must_load = True
        while True:
            try:
                if self._away:
                    await self._engine.barrier()
                    log.info("the log is reached again")
                    self._away = ""
                if must_load:
                    await self._load()
                    must_load = False
                await self._follow()
            except (FollowerBehind, OutOfOrder) as behind:
                log.info("the feed cannot go on (%s); loading the state again", behind)
                must_load = True
                await self._pause()
            except LogUnavailable as away:
                # Said once, and again when it turns out to need a person: who reads asks since when, not how often.
                is_news = not self._away or (isinstance(away, LogMisconfigured) and self._away != str(away))
                self._away = str(away)
                if is_news:
                    log.warning("the log is out of reach: %s; trying again until it answers", away)
                await self._pause()

    async def _pause(self) -> None:
        """Longer each time, until something comes again."""
        await asyncio.sleep(self._pause_s * (0.5 + self._world.random.random() / 2))
        self._pause_s = min(2 * self._pause_s, MAX_RETRY_DELAY_S)

    async def _load(self) -> None:
        self._held.clear()  # What was on its way is read like everything else.
        load = self._engine.load()
        loading = ReplicaLoad(self.replica)
        async for rows in load.iter_slices():
            for start in range(0, len(rows), LOAD_ROWS_PER_STEP):
                loading.add_records(rows[start : start + LOAD_ROWS_PER_STEP])
                await asyncio.sleep(0)
        for _ in loading.finish_in_steps(await load.get_position()):
            await asyncio.sleep(0)
        reject_newer_format(self.replica)
        self.loaded_event.set()
        self._tell_reached()
        for heard in self.load_listeners:
            heard()

    async def _follow(self) -> None:
        changes = 0
        async for batch in self._engine.follow(self.replica.index):
            changes += len(batch.changes)
            if changes > APPLY_CHANGES_PER_STEP:  # Small batches that arrived together must not hold the loop either.
                changes = len(batch.changes)
                await asyncio.sleep(0)
            applying = BatchApplication(self.replica, batch, self._held.pop(batch.id, None))
            for _ in applying.decode_in_steps():
                await asyncio.sleep(0)
            for look in self.pre_apply_listeners:
                look(batch)
            applying.apply_changes()
            try:
                # Before anybody else runs: who listens keeps figures of its own that must agree with the replica.
                for take in self.change_listeners:
                    take(batch, applying.applied_changes)
                self._tell(batch)
            finally:
                for _ in applying.wake_in_steps():
                    await asyncio.sleep(0)

    def _tell(self, batch: Batch) -> None:
        if self.replica.get_last_change(CLUSTER_FORMAT) == batch.index:
            reject_newer_format(self.replica)
        self._pause_s = MIN_RETRY_DELAY_S
        self._writes[batch.id] = batch.index
        if len(self._writes) > MAX_CACHED_WRITES:
            self._writes.popitem(last=False)
        if self._reached:
            self._tell_reached()
        for heard in self.batch_listeners:
            heard(batch)

    async def wait_until_applied(self, index: int) -> None:
        """Wait until the replica has applied everything up to `index`. Refused where it never will, or has not in time."""
        if self.replica.index >= index:
            return
        if self._failure is not None:
            raise _stuck(self._failure)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._reached.setdefault(index, {})[future] = None
        late = loop.call_later(APPLY_TIMEOUT_S, self._on_late, index, future)
        try:
            await future
        finally:
            late.cancel()
            self._forget(index, future)

    def _on_late(self, index: int, future: asyncio.Future[None]) -> None:
        if not future.done():
            text = (
                f"this server stands at index {self.replica.index} and has heard of nothing newer for "
                f"{APPLY_TIMEOUT_S:g} s; it waits for {index}"
            )
            future.set_exception(Refusal(RefusalCode.UNAVAILABLE, text))

    @property
    def waiter_count(self) -> int:
        """How many wait for an index."""
        return sum(map(len, self._reached.values()))

    def _forget(self, index: int, future: asyncio.Future[None]) -> None:
        waiting = self._reached.get(index)
        if waiting is not None:
            waiting.pop(future, None)
            if not waiting:
                del self._reached[index]

    def _give_up_waiters(self, error: Exception) -> None:
        for waiting in self._reached.values():
            for future in waiting:
                if not future.done():
                    future.set_exception(_stuck(error))

    def cache_write(self, write_id: str, held: AdoptableRecords) -> None:
        """A write of this process is on its way: when it comes back, what is held of it need not be decoded."""
        if held:
            self._held[write_id] = held

    def discard_cached_write(self, write_id: str) -> None:
        """The write will not come, or has come."""
        self._held.pop(write_id, None)

    def find_write_index(self, write_id: str) -> int | None:
        """Where a write of the last while was committed; None says nothing."""
        return self._writes.get(write_id)

    def _tell_reached(self) -> None:
        for index in [index for index in self._reached if index <= self.replica.index]:
            for future in self._reached.pop(index):
                if not future.done():
                    future.set_result(None)


def _stuck(error: Exception) -> Refusal:
    return Refusal(RefusalCode.UNAVAILABLE, f"this server can no longer follow the log: {error}")
