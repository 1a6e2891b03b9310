"""Planted bugs of locks: a second write follows that changes what was stored."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from simulation.cluster import Cluster
from wharf.cluster.engines.port import Committed, EncodedWrite, WriteOutcome
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, LEADER
from wharf.contract.model.log import EncodedChange

UNBLOCK_KIND: Final = "evaluations-unblocked"


def lose_locks(cluster: Cluster) -> None:
    """Remove the lock from each stored allocation, so that nobody sees that it holds a slot."""

    def lose_lock(record: dict[str, Any]) -> bool:
        return record.pop("LockKey", None) is not None

    _follow_writes(cluster, lambda write: _alter_records(write, ALLOCATIONS.name, lose_lock))


def keep_locks(cluster: Cluster) -> None:
    """Cancel the retry of evaluations that wait for a lock: its slot is never given to them."""

    def cancel(record: dict[str, Any]) -> bool:
        record["Status"] = "canceled"
        return bool(record.get("LockWaits"))

    _follow_writes(
        cluster, lambda write: _alter_records(write, EVALUATIONS.name, cancel) if write.kind == UNBLOCK_KIND else []
    )


def _follow_writes(cluster: Cluster, list_altered: Callable[[EncodedWrite], list[EncodedChange]]) -> None:
    """Commit a second write after each committed one for which `list_altered` returns changes."""
    commit = cluster.log.commit

    def commit_twice(write: EncodedWrite) -> WriteOutcome:
        outcome = commit(write)
        altered = list_altered(write) if isinstance(outcome, Committed) else []
        if altered:
            conditions = [each for each in write.conditions if each.table == LEADER.name]
            commit(replace(write, id=f"{write.id}+", conditions=conditions, changes=altered))
        return outcome

    cluster.log.commit = commit_twice  # type: ignore[method-assign]  # the planted bug


def _alter_records(write: EncodedWrite, table: str, alter: Callable[[dict[str, Any]], bool]) -> list[EncodedChange]:
    """Return the changed records of a table that `alter` changes again. It returns whether it does."""
    altered = []
    for change in write.changes:
        if change.table == table and change.data is not None:
            record = msgspec.msgpack.decode(change.data)
            if alter(record):
                altered.append(replace(change, data=msgspec.msgpack.encode(record)))
    return altered
