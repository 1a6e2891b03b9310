"""Rounds of a real store process under load that is killed, and what must hold of its log after each.

Every caller writes a counter and a line of its own in one batch, on the condition that the counter is as it left it. So a
lost write, half a write and a write done twice each show.
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
LINES = 50  # Each caller writes its lines over again.


@dataclass
class Caller:
    """A writer and its acknowledged writes."""

    name: str
    count: int = 0
    version: int = 0
    acknowledged: dict[str, int] = field(default_factory=dict)
    """The index of every write that was acknowledged, or found later."""
    never: set[str] = field(default_factory=set)
    """Writes that were not sent, or that `find` did not find."""
    open_question: EncodedWrite | None = None

    def next_write(self) -> EncodedWrite:
        number = self.count + 1
        return EncodedWrite(
            f"{self.name}-{number}-{len(self.never)}",
            "test",
            Cause(CauseKind.REQUEST, self.name),
            (Condition("counters", self.name, self.version),),
            (
                EncodedChange("counters", self.name, b"%d" % number),
                EncodedChange("lines", f"{self.name}\0{number % LINES}", line_of(number)),
            ),
        )

    def record_acknowledged(self, write: EncodedWrite, index: int) -> None:
        self.acknowledged[write.id] = index
        self.count += 1
        self.version = index

    async def write_on(self, engine: RemoteEngine) -> None:
        """Write until the store is unavailable."""
        while True:
            write = self.next_write()
            try:
                outcome = await engine.commit(write)
            except LogUnavailable:
                self.never.add(write.id)
                return
            if isinstance(outcome, WriteOutcomeUnknown):
                self.open_question = write
                return
            assert isinstance(outcome, Committed), outcome
            self.record_acknowledged(write, outcome.index)

    async def settle(self, engine: RemoteEngine) -> None:
        """Search for the write whose reply was lost."""
        if self.open_question is None:
            return
        write, self.open_question = self.open_question, None
        await engine.barrier()
        index = await engine.find_write(write.id, since=self.version)
        if index is None:
            self.never.add(write.id)
        else:
            self.record_acknowledged(write, index)


@dataclass
class Tally:
    """Counts of the situations that a run met, so that tests can assert that they occurred."""

    acknowledged: int = 0
    unknown_that_happened: int = 0
    unknown_that_did_not: int = 0


async def run_rounds(folder: Path, *, rounds: int, seed: int) -> Tally:
    random = Random(seed)
    callers = [Caller(f"caller{number}") for number in range(CALLERS)]
    tally = Tally()
    checked_to = 0
    for _ in range(rounds):
        store = StoreProcess(folder)
        engines = [RemoteEngine(RealWorld(), store.socket_path, open_timeout_s=20.0) for _ in range(2)]
        try:
            for engine in engines:
                await engine.open()
            await settle_all(callers, engines[0], tally)
            checked_to = await check(callers, engines[0], after=checked_to)
            await load_until_killed(callers, engines, store, after_s=random.uniform(0.005, 0.12))
        finally:
            for engine in engines:
                await engine.close()
            store.kill()
    store = StoreProcess(folder)
    engine = RemoteEngine(RealWorld(), store.socket_path, open_timeout_s=20.0)
    try:
        await engine.open()
        await settle_all(callers, engine, tally)
        await check(callers, engine, after=checked_to)
    finally:
        await engine.close()
        store.end()
    tally.acknowledged = sum(caller.count for caller in callers)
    return tally


async def load_until_killed(
    callers: list[Caller], engines: list[RemoteEngine], store: StoreProcess, *, after_s: float
) -> None:
    work = [caller.write_on(engines[number % len(engines)]) for number, caller in enumerate(callers)]
    loading = asyncio.ensure_future(asyncio.gather(*work))
    asyncio.get_running_loop().call_later(after_s, store.signal_kill)
    await loading


async def settle_all(callers: list[Caller], engine: RemoteEngine, tally: Tally) -> None:
    for caller in callers:
        was_open, before = caller.open_question is not None, caller.count
        await caller.settle(engine)
        tally.unknown_that_happened += was_open and caller.count > before
        tally.unknown_that_did_not += was_open and caller.count == before


async def check(callers: list[Caller], engine: RemoteEngine, *, after: int) -> int:
    """Check that the log contains exactly the acknowledged writes, each once and complete. Returns the last checked index."""
    rows, position = await load(engine)
    expected = {("counters", caller.name): b"%d" % caller.count for caller in callers if caller.count}
    expected |= {
        ("lines", f"{caller.name}\0{number % LINES}"): line_of(number)
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


def line_of(number: int) -> bytes:
    return (b"%09d" % number) * (LINE_BYTES // 9)
