"""Rounds in which a real store process is killed under load, and the check of its log after each round.

Each batch of a caller writes the caller's counter and one of its lines, on the condition that the counter is unchanged. So
the check detects lost, partial and repeated writes.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.cluster.engines.contract import follow_to, load
from tests.cluster.engines.store_process import StoreProcess
from wharf.cluster.engines.port import (
    Batch,
    Committed,
    EncodedChange,
    EncodedWrite,
    LogUnavailable,
    WriteOutcomeUnknown,
)
from wharf.cluster.engines.store.engine import RemoteEngine
from wharf.contract.model.log import Cause, CauseKind, Condition
from wharf.world import RealWorld

CALLERS = 6
LINE_BYTES = 3_000  # So that commits take several pages and frames.
LINES = 50  # Each caller overwrites its oldest line after this number.


@dataclass
class Caller:
    """A writer and its acknowledged writes."""

    name: str
    count: int = 0
    version: int = 0
    acknowledged: dict[str, int] = field(default_factory=dict)
    """The index of every write that was acknowledged, or found later."""
    not_committed: set[str] = field(default_factory=set)
    """Writes that were not sent, or that `find` did not find."""
    unresolved_write: EncodedWrite | None = None

    def next_write(self) -> EncodedWrite:
        """Return the next write of the counter and one line, on the condition that the counter is unchanged."""
        number = self.count + 1
        return EncodedWrite(
            f"{self.name}-{number}-{len(self.not_committed)}",
            "test",
            Cause(CauseKind.REQUEST, self.name),
            (Condition("counters", self.name, self.version),),
            (
                EncodedChange("counters", self.name, b"%d" % number),
                EncodedChange("lines", f"{self.name}\0{number % LINES}", make_line(number)),
            ),
        )

    def record_acknowledged(self, write: EncodedWrite, index: int) -> None:
        self.acknowledged[write.id] = index
        self.count += 1
        self.version = index

    async def write_until_unavailable(self, engine: RemoteEngine) -> None:
        """Write until the store is unavailable."""
        while True:
            write = self.next_write()
            try:
                outcome = await engine.commit(write)
            except LogUnavailable:
                self.not_committed.add(write.id)
                return
            if isinstance(outcome, WriteOutcomeUnknown):
                self.unresolved_write = write
                return
            assert isinstance(outcome, Committed), outcome
            self.record_acknowledged(write, outcome.index)

    async def resolve_unknown_write(self, engine: RemoteEngine) -> None:
        """Search for the write whose reply was lost."""
        if self.unresolved_write is None:
            return
        write, self.unresolved_write = self.unresolved_write, None
        await engine.barrier()
        index = await engine.find_write(write.id, since=self.version)
        if index is None:
            self.not_committed.add(write.id)
        else:
            self.record_acknowledged(write, index)


@dataclass
class Tally:
    """How often each situation occurred, so that tests can assert that it did."""

    acknowledged: int = 0
    unknown_committed: int = 0
    unknown_not_committed: int = 0


async def run_rounds(folder: Path, *, rounds: int, seed: int) -> Tally:
    """Run this number of rounds on one log. Return how often each situation occurred."""
    random = Random(seed)
    callers = [Caller(f"caller{number}") for number in range(CALLERS)]
    tally = Tally()
    checked_index = 0
    for _ in range(rounds):
        store = StoreProcess(folder)
        engines = [RemoteEngine(RealWorld(), store.socket_path, open_timeout_s=20.0) for _ in range(2)]
        try:
            for engine in engines:
                await engine.open()
            await resolve_all(callers, engines[0], tally)
            checked_index = await check(callers, engines[0], after=checked_index)
            await write_until_killed(callers, engines, store, after_s=random.uniform(0.005, 0.12))
        finally:
            for engine in engines:
                await engine.close()
            store.kill()
    store = StoreProcess(folder)
    engine = RemoteEngine(RealWorld(), store.socket_path, open_timeout_s=20.0)
    try:
        await engine.open()
        await resolve_all(callers, engine, tally)
        await check(callers, engine, after=checked_index)
    finally:
        await engine.close()
        store.end()
    tally.acknowledged = sum(caller.count for caller in callers)
    return tally


async def write_until_killed(
    callers: list[Caller], engines: list[RemoteEngine], store: StoreProcess, *, after_s: float
) -> None:
    writers = [caller.write_until_unavailable(engines[number % len(engines)]) for number, caller in enumerate(callers)]
    writing = asyncio.ensure_future(asyncio.gather(*writers))
    asyncio.get_running_loop().call_later(after_s, store.signal_kill)
    await writing


async def resolve_all(callers: list[Caller], engine: RemoteEngine, tally: Tally) -> None:
    for caller in callers:
        was_unresolved, before = caller.unresolved_write is not None, caller.count
        await caller.resolve_unknown_write(engine)
        tally.unknown_committed += was_unresolved and caller.count > before
        tally.unknown_not_committed += was_unresolved and caller.count == before


async def check(callers: list[Caller], engine: RemoteEngine, *, after: int) -> int:
    """Check that the log contains exactly the acknowledged writes, each once and complete. Return the last checked index."""
    rows, position = await load(engine)
    expected = {("counters", caller.name): b"%d" % caller.count for caller in callers if caller.count}
    expected |= {
        ("lines", f"{caller.name}\0{number % LINES}"): make_line(number)
        for caller in callers
        for number in range(max(1, caller.count + 1 - LINES), caller.count + 1)
    }
    assert expected == {row_key: data for row_key, (_, data) in rows.items()}
    batches: list[Batch] = []
    if position.index > after:
        batches = await follow_to(engine, after=after, index=position.index)
    acknowledged = {
        write_id: index for caller in callers for write_id, index in caller.acknowledged.items() if index > after
    }
    assert acknowledged == {batch.id: batch.index for batch in batches}
    assert {len(batch.changes) for batch in batches} <= {2}
    assert list(range(after + 1, position.index + 1)) == [batch.index for batch in batches]
    return position.index


def make_line(number: int) -> bytes:
    return (b"%09d" % number) * (LINE_BYTES // 9)
