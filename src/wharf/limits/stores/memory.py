"""The store of one process: counters in memory, saved to a file periodically so that a restart does not reset limits."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from wharf.limits.core.counting.counters import Counters
from wharf.limits.core.plans import Charge
from wharf.limits.core.rule import RuleSet
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult
from wharf.limits.stores.change_log import ChangeLog, TrackedCounters
from wharf.limits.stores.port import RefundReason
from wharf.limits.stores.snapshot import InvalidSnapshot, generate_frames, read_frames
from wharf.world import World
from wharf.world.durable_file import open_private_file, rename_durably, sync_file
from wharf.world.tasks import cancel_tasks

log = logging.getLogger(__name__)

SAVE_INTERVAL_S: Final = 10.0
"""At most this many seconds of counts are lost if the process is killed and has no change log."""


class MemoryStore:
    """Counters in memory.

    `path` is the file in which they survive restarts. `clock` returns Unix milliseconds; the default is the clock of
    `world`.
    """

    def __init__(
        self,
        world: World,
        rules: RuleSet,
        *,
        path: Path | None = None,
        clock: Callable[[], int] | None = None,
        has_change_log: bool = False,
    ) -> None:
        """With `has_change_log` and a `path`, no reply is lost if the process is killed."""
        self._changes = ChangeLog(path) if has_change_log and path is not None else None
        counters_class = TrackedCounters if self._changes is not None else Counters
        self.counters: Final = counters_class(rules.counted_rules, max_keys=rules.keys_most)
        self._world = world
        self._path = path
        self._clock = clock
        self._saver: asyncio.Task[None] | None = None

    @property
    def local_counters(self) -> Counters | None:
        return self.counters

    def now_ms(self) -> int:
        return self._clock() if self._clock is not None else self._world.now_ns() // 1_000_000

    async def open(self) -> None:
        """Load the saved counters and start to save them periodically. Does nothing without a file."""
        if self._path is None:
            return
        await self.load()
        if self._changes is not None:
            self._changes.start_file()
        self._saver = self._world.start_task(self._keep_saving(), name="limits: save counters")

    async def close(self) -> None:
        """Stop the periodic saving, save the counters, and close the change log."""
        if self._saver is not None:
            await cancel_tasks(self._saver)
            self._saver = None
        if self._path is not None:
            await self.save()
        if self._changes is not None:
            self._changes.close()

    async def _keep_saving(self) -> None:
        """Evict idle counters and save all others, every `SAVE_INTERVAL_S` seconds."""
        while True:
            await asyncio.sleep(SAVE_INTERVAL_S)
            for _ in self.counters.sweep(self.now_ms()):
                await asyncio.sleep(0)
            try:
                await self.save()
            except OSError as problem:
                log.error("cannot save counters path=%s error=%s", self._path, problem)

    async def save(self) -> None:
        """Write all counters to a new file that replaces the old one, and delete the change log files that it makes obsolete.

        Other tasks can run between two frames. Raises `OSError` if writing fails.
        """
        if self._path is None:
            return
        new = self._path.with_name(f"{self._path.name}.new")
        number = None if self._changes is None else self._changes.start_file()
        with open_private_file(new) as file:
            for frame in generate_frames(self.counters):
                file.write(frame)
                await asyncio.sleep(0)
            await asyncio.to_thread(sync_file, file)
        # The new file must be durable under its name before the changes that it contains are deleted.
        await asyncio.to_thread(rename_durably, new, self._path)
        if self._changes is not None and number is not None:
            self._changes.delete_before(number)

    def write_changes(self) -> None:
        """Append the changes since the last call to the change log."""
        if self._changes is not None and isinstance(self.counters, TrackedCounters):
            self._changes.write_changes(self.counters)

    async def load(self) -> None:
        """Load the saved counters and the changes in the change log.

        Raises `InvalidSnapshot` for a file that is damaged, has a newer format or is not a counter file.
        """
        if self._path is not None and self._path.exists():
            with self._path.open("rb") as file:
                for rows in read_frames(file, self._path.name):
                    rows.load_into(self.counters)
                    await asyncio.sleep(0)
        if self._changes is not None:
            self._changes.load_into(self.counters)

    # -- the port --------------------------------------------------------------------------------------------------

    def take_now(self, call: StoreCall) -> TakeResult:
        """Check and charge all limits of a request without awaiting. Call it only in the thread of the event loop."""
        return self.counters.take(call, self.now_ms())

    async def take(self, call: StoreCall) -> TakeResult:
        return self.counters.take(call, self.now_ms())

    async def release(self, request_id: str) -> None:
        self.counters.release(request_id, self.now_ms())

    async def renew(self, request_ids: Iterable[str]) -> int:
        return self.counters.renew(request_ids, self.now_ms())

    async def refund(self, request_id: str, reason: RefundReason) -> bool:
        return self.counters.refund(request_id, self.now_ms(), is_fault=reason is RefundReason.FAULT)

    async def add_usage(self, charges: Iterable[Charge], amount: int) -> None:
        self.counters.add_usage(charges, amount, self.now_ms())

    async def peek(self, charges: Iterable[Charge]) -> tuple[CounterReading, ...]:
        return self.counters.peek(charges, self.now_ms())

    async def reset(self, charges: Iterable[Charge]) -> None:
        self.counters.reset(charges)

    async def ban(self, subject: str, until_ms: int) -> None:
        self.counters.ban(subject, until_ms)

    async def get_ban_end_ms(self, subject: str) -> int:
        return self.counters.bans.get_end_ms(subject, self.now_ms())

    async def set_rules(self, rules: RuleSet) -> None:
        self.counters.set_rules(rules.counted_rules, max_keys=rules.keys_most)


__all__ = ["SAVE_INTERVAL_S", "InvalidSnapshot", "MemoryStore"]
