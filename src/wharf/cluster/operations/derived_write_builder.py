"""A view of the state as a write will leave it. Derived changes are computed from it and added to the write."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from wharf.cluster.scheduling.steps.facts import RunFacts
from wharf.cluster.state import Index, Replica, Table
from wharf.cluster.state.tables import ALLOCATIONS, ARRAY_ATTEMPTS, ARRAY_RESULTS
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import Condition, PutRecord, Write

RUN_TABLES: Final = frozenset({ALLOCATIONS.name, ARRAY_ATTEMPTS.name, ARRAY_RESULTS.name})
"""The tables from which the facts about the steps of a run are read."""


class DerivedWriteBuilder:
    """A view of the state as a write will leave it, which collects further changes that follow from the write."""

    def __init__(self, snapshot: Replica, write: Write) -> None:
        self.snapshot = snapshot
        self._changed: dict[str, dict[str, Any]] = {}
        """By table name and key, the records that the write changes; `None`: deleted."""
        self._write = write
        self._changes = {(change.table, change.key): change for change in write.changes}
        """All changes of the write by (table name, key)."""
        self._operation_keys = frozenset(self._changes)
        self._conditions = {(condition.table, condition.key): condition for condition in write.conditions}
        """All conditions of the write by (table name, key)."""
        self._changed_by_value: dict[tuple[str, str], dict[Any, dict[str, Any]]] = {}
        """By table and index, the records that the write stores by their index value and key. Built on first use.

        A write may contain the changes of many jobs, and each job needs only its own.
        """
        self._run: tuple[Job, RunFacts] | None = None
        """The run that was read last, until the write changes one of `RUN_TABLES`."""
        for change in write.changes:
            record = change.record if isinstance(change, PutRecord) else None
            self._changed.setdefault(change.table, {})[change.key] = record

    def is_stored_by_operation(self, table: Table[Any], *key: str | int) -> bool:
        """Return whether the original write, before any derived change, stores this record."""
        return (table.name, table.build_key(*key)) in self._operation_keys

    def get_changes(self, table: Table[Any]) -> dict[str, Any]:
        """Return the changed records of a table by key; the value is `None` if the write deletes the record."""
        return self._changed.get(table.name, {})

    def get_record(self, table: Table[Any], *key: str | int) -> Any:
        """Return the record as the write will leave it, or `None` if it does not exist then."""
        changed = self.get_changes(table)
        joined = table.build_key(*key)
        return changed[joined] if joined in changed else self.snapshot.get(table, joined)

    def iterate_index(self, table: Table[Any], index: Index[Any], value: tuple[Hashable, ...]) -> Iterator[Any]:
        """Yield the records with this value of the index, as the write will leave them."""
        changed = self.get_changes(table)
        yield from self.list_stored(table, index, value)
        # Lazy: most callers stop at the first match, and a job may have a million allocations.
        for key, record in self.snapshot.iter_by_index(index, *value):
            if key not in changed:
                yield record

    def list_stored(self, table: Table[Any], index: Index[Any], value: tuple[Hashable, ...]) -> Sequence[Any]:
        """Return the records with this value of the index that the write stores, in the order of its changes."""
        changed = self._changed.get(table.name)
        if changed is None:
            return ()
        by_value = self._changed_by_value.get((table.name, index.name))
        if by_value is None:
            by_value = self._changed_by_value[table.name, index.name] = {}
            for key, record in changed.items():
                if record is not None:
                    by_value.setdefault(index.get_value(record), {})[key] = record
        return list(by_value.get(value, {}).values())

    def has_deleted(self, table: Table[Any], index: Index[Any], value: tuple[Hashable, ...]) -> bool:
        """Return whether the write deletes a record that has this value of the index."""
        deleted_records = [
            self.snapshot.get(table, key) for key, record in self.get_changes(table).items() if record is None
        ]
        return any(record is not None and index.get_value(record) == value for record in deleted_records)

    def put_record(self, table: Table[Any], record: Any) -> None:
        """Add a changed record to the write, and the condition that its stored version is still the current one."""
        change = table.build_put(record)
        change_key = (table.name, change.key)
        changed = self._changed.setdefault(table.name, {})
        self._update_groups(table, change.key, changed.get(change.key), record)
        changed[change.key] = record
        if table.name in RUN_TABLES:
            self._run = None
        self._changes[change_key] = change
        version = self.snapshot.get_version(table, change.key)
        self._conditions.setdefault(change_key, Condition(table.name, change.key, version))

    def _update_groups(self, table: Table[Any], key: str, replaced: Any, record: Any) -> None:
        """Put a record that the write stores, in place of `replaced`, into the groups by index value that exist already."""
        for index in table.indexes:
            by_value = self._changed_by_value.get((table.name, index.name))
            if by_value is None:
                continue
            value = index.get_value(record)
            if replaced is not None and (former := index.get_value(replaced)) != value:
                del by_value[former][key]
            by_value.setdefault(value, {})[key] = record

    def require_unchanged(self, table: Table[Any], *key: str | int) -> None:
        """Add the condition that the stored version of a record, which the write does not store, is still the current one."""
        joined = table.build_key(*key)
        version = self.snapshot.get_version(table, joined)
        self._conditions.setdefault((table.name, joined), Condition(table.name, joined, version))

    def find_run(self, job: Job) -> RunFacts | None:
        """Return the facts of `remember_run`, or `None` if the write has changed since, or another run was read."""
        return self._run[1] if self._run is not None and self._run[0] is job else None

    def remember_run(self, job: Job, run: RunFacts) -> None:
        """Store the facts about the steps of a job. One write reads them for the next states, the status and the outcome."""
        self._run = job, run

    def build_write(self) -> Write:
        """Return the original write, extended by all changes and conditions that were added."""
        return replace(self._write, changes=tuple(self._changes.values()), conditions=tuple(self._conditions.values()))
