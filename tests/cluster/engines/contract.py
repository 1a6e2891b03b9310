"""The facts about an engine that the contract suite needs, and helper functions for its tests.

To add an engine to the suite, add a module `tests/cluster/engines/kind_<name>.py` that defines `KIND`.
"""

import importlib
import itertools
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import pytest
from _pytest.mark import ParameterSet

from wharf.cluster.engines.port import (
    Batch,
    Committed,
    EncodedChange,
    EncodedWrite,
    LogEngine,
    LogPosition,
    WriteOutcome,
)
from wharf.contract.model.log import Cause, CauseKind, Condition

RecordKey = tuple[str, str]
"""The table and the key of a record."""


class FreshLog(Protocol):
    """A log that was empty when the test began."""

    async def open_engine(self) -> LogEngine:
        """Return an open engine of another member. All engines are closed when the test ends; closing twice is allowed."""
        ...

    async def reopen(self) -> LogEngine:
        """Close every engine, restart the server of the log if the test owns it, and open an engine."""
        ...

    async def write_elsewhere(self) -> None:
        """Write a key of another program if the log's storage is shared; else do nothing."""
        ...


class EngineKind(Protocol):
    """A kind of engine that the suite tests."""

    name: str
    programs: Sequence[str]
    """The system programs that its tests start."""
    ttl_s: float
    """The shortest lease duration that the engine supports."""
    allows_many_engines: bool
    """Whether several members can open the same log at once."""

    def fresh(self, folder: Path) -> AbstractAsyncContextManager[FreshLog]: ...


def kinds(*, many_engines_only: bool = False) -> list[ParameterSet]:
    """Return every engine kind as parameters of a test."""
    found = sorted(Path(__file__).parent.glob("kind_*.py"))
    joined: list[EngineKind] = [importlib.import_module(f"tests.cluster.engines.{file.stem}").KIND for file in found]
    return [
        pytest.param(kind, id=kind.name, marks=[pytest.mark.needs_program(program) for program in kind.programs])
        for kind in joined
        if kind.allows_many_engines or not many_engines_only
    ]


# --- writing and reading records ---

_numbers = itertools.count(1)


def put(key: str, data: bytes = b"data", *, table: str = "jobs") -> EncodedChange:
    return EncodedChange(table, key, data)


def drop(key: str, *, table: str = "jobs") -> EncodedChange:
    return EncodedChange(table, key, None)


def unchanged(key: str, version: int, *, table: str = "jobs") -> Condition:
    """Return the condition that the record still has this version (0: does not exist)."""
    return Condition(table, key, version)


def a_write(
    *changes: EncodedChange, conditions: Sequence[Condition] = (), lease: int = 0, id: str = ""
) -> EncodedWrite:
    write_id = id or f"write-{next(_numbers)}"
    return EncodedWrite(write_id, "test", Cause(CauseKind.REQUEST, "r1"), tuple(conditions), changes, lease)


def unchanged_prefix(prefix: str, index: int, *, table: str = "jobs") -> Condition:
    """Return the condition that no record under the prefix was created or changed after this index."""
    return Condition(table, prefix, index, is_prefix=True)


def index_of(outcome: WriteOutcome) -> int:
    assert isinstance(outcome, Committed), outcome
    return outcome.index


async def commit(
    engine: LogEngine, *changes: EncodedChange, conditions: Sequence[Condition] = (), lease: int = 0
) -> int:
    """Commit changes, which must succeed, and return the index."""
    return index_of(await engine.commit(a_write(*changes, conditions=conditions, lease=lease)))


async def load(engine: LogEngine) -> tuple[dict[RecordKey, tuple[int, bytes]], LogPosition]:
    """Load the log: version and data of every record, and the position of the load."""
    loading = engine.load()
    rows = {(row.table, row.key): (row.version, row.data) async for slice in loading.iter_slices() for row in slice}
    return rows, await loading.get_position()


async def written(engine: LogEngine) -> dict[RecordKey, int]:
    """Return the index at which each record was written, also after restores."""
    loading = engine.load()
    return {(row.table, row.key): row.write_index async for slice in loading.iter_slices() for row in slice}


async def records(engine: LogEngine) -> dict[RecordKey, bytes]:
    """Return the data of every record."""
    rows, _ = await load(engine)
    return {row_key: data for row_key, (_, data) in rows.items()}


async def follow_to(engine: LogEngine, *, after: int, index: int) -> list[Batch]:
    """Return the batches of the feed after index `after`, up to and including `index`."""
    feed = engine.follow(after)
    batches = [await anext(feed)]
    while batches[-1].index < index:
        batches.append(await anext(feed))
    return batches


def replay(batches: Sequence[Batch], onto: Mapping[RecordKey, tuple[int, bytes]]) -> dict[RecordKey, tuple[int, bytes]]:
    """Return the records after these batches are applied."""
    rows = dict(onto)
    for batch in batches:
        for change in batch.changes:
            if change.data is None:
                rows.pop((change.table, change.key), None)
            else:
                rows[change.table, change.key] = (batch.index, change.data)
    return rows


def in_order(changes: Sequence[EncodedChange]) -> list[EncodedChange]:
    """Return the changes of a batch sorted, for comparison."""
    return sorted(changes, key=lambda change: (change.table, change.key))
