"""Shortens the log's tail: which lines go next, and the statements that take them away.

Lines that still count stay where they are, as records; only heads and dead lines go. It opens no transaction.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import apsw
import msgspec

from wharf.engines.sqlite_file import LINES_PER_BATCH
from wharf.engines.sqlite_ledger import Ledger
from wharf.engines.sqlite_lines import index_of

_TAIL: Final = "SELECT place, table_name FROM log WHERE place >= ? ORDER BY place LIMIT ?"


class Cut(msgspec.Struct, frozen=True):
    """`tail_from`: the feed reaches back to the batches after it. `stale`: how many of the ledger's stale lines go."""

    tail_from: int
    changes: int
    stale: int
    deleted: Sequence[int]
    last_changes: Mapping[str, int]


def plan_cut(connection: apsw.Connection, ledger: Ledger, *, surplus: int, upto: int, max_lines: int) -> Cut:
    """The next step: stale lines first, then whole batches up to an index, with `surplus` changes at most.

    As long as stale lines are left over, no batch leaves the tail: its drops may be what makes them dead.
    """
    stale = ledger.stale[:max_lines]
    if len(stale) < len(ledger.stale):
        return Cut(ledger.tail_from, 0, len(stale), stale, {})
    tail_from, changes, last_changes = ledger.tail_from, 0, dict[str, int]()
    deleted = list(stale)
    batch: list[tuple[int, str | None]] = []
    first = (tail_from + 1) * LINES_PER_BATCH
    # The last batch may be cut off by the limit: a batch is whole once the head of the next is seen.
    lines: list[tuple[int, str | None]] = list(connection.execute(_TAIL, (first, max_lines + LINES_PER_BATCH)))
    for place, table in lines:
        if table is None and batch:
            if len(batch) - 1 > surplus - changes or index_of(batch[0][0]) > upto:
                break
            tail_from = index_of(batch[0][0])
            changes += len(batch) - 1
            deleted += [line for line, name in batch if name is None or line in ledger.dead]
            last_changes |= {name: tail_from for _, name in batch if name is not None}
            batch = []
        batch.append((place, table))
    return Cut(tail_from, changes, len(stale), deleted, last_changes)


def write_cut(connection: apsw.Connection, cut: Cut) -> None:
    connection.executemany("DELETE FROM log WHERE place = ?", [(place,) for place in cut.deleted])
    write_last_changes(connection, cut.last_changes)
    write_facts(connection, tail_from=cut.tail_from)


def write_last_changes(connection: apsw.Connection, last_changes: Mapping[str, int]) -> None:
    connection.executemany("INSERT OR REPLACE INTO last_changes VALUES (?, ?)", list(last_changes.items()))


def write_facts(connection: apsw.Connection, **facts: int) -> None:
    connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", list(facts.items()))
