"""Trimming of the log's tail: which lines are deleted next, and the statements that delete them.

Current lines stay, because they are the records; only heads and dead lines are deleted. This module opens no
transaction.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import apsw
import msgspec

from wharf.cluster.engines.sqlite.database import MAX_BATCH_LINES
from wharf.cluster.engines.sqlite.line_index import LogLineIndex
from wharf.cluster.engines.sqlite.lines import get_batch_index

_TAIL: Final = "SELECT place, table_name FROM log WHERE place >= ? ORDER BY place LIMIT ?"


class TrimPlan(msgspec.Struct, frozen=True):
    """The lines that the next trimming step deletes.

    `tail_from`: afterwards the feed reaches back to the batches after this index. `change_count`: how many changes the
    feed loses. `stale_count`: how many of the first stale lines are deleted. `last_changes`: the index of the last change
    of each table in the discarded batches.
    """

    tail_from: int
    change_count: int
    stale_count: int
    deleted_lines: Sequence[int]
    last_changes: Mapping[str, int]


def plan_trim(
    connection: apsw.Connection, line_index: LogLineIndex, *, surplus: int, last_index: int, max_lines: int
) -> TrimPlan:
    """Plan the next step: stale lines first, then whole batches up to `last_index`, with at most `surplus` changes.

    While stale lines are left, no batch leaves the tail, because its deletions may be what makes those lines dead.
    """
    stale = line_index.stale_lines[:max_lines]
    if len(stale) < len(line_index.stale_lines):
        return TrimPlan(line_index.tail_from, 0, len(stale), stale, {})
    tail_from, changes, last_changes = line_index.tail_from, 0, dict[str, int]()
    deleted = list(stale)
    batch: list[tuple[int, str | None]] = []
    first = (tail_from + 1) * MAX_BATCH_LINES
    # The limit may truncate the last batch: a batch is complete only if the head of the next one was read.
    lines: list[tuple[int, str | None]] = list(connection.execute(_TAIL, (first, max_lines + MAX_BATCH_LINES)))
    for place, table in lines:
        if table is None and batch:
            if len(batch) - 1 > surplus - changes or get_batch_index(batch[0][0]) > last_index:
                break
            tail_from = get_batch_index(batch[0][0])
            changes += len(batch) - 1
            deleted += [line for line, name in batch if name is None or line in line_index.dead_lines]
            last_changes |= {name: tail_from for _, name in batch if name is not None}
            batch = []
        batch.append((place, table))
    return TrimPlan(tail_from, changes, len(stale), deleted, last_changes)


def write_trim(connection: apsw.Connection, plan: TrimPlan) -> None:
    connection.executemany("DELETE FROM log WHERE place = ?", [(place,) for place in plan.deleted_lines])
    write_last_changes(connection, plan.last_changes)
    write_facts(connection, tail_from=plan.tail_from)


def write_last_changes(connection: apsw.Connection, last_changes: Mapping[str, int]) -> None:
    """Store the index of the last change of each table."""
    connection.executemany("INSERT OR REPLACE INTO last_changes VALUES (?, ?)", list(last_changes.items()))


def write_facts(connection: apsw.Connection, **facts: int) -> None:
    """Store facts of the log. The names of the arguments are the names in the file."""
    connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", list(facts.items()))
