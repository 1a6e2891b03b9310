"""The result type of every operation, the builder of writes, and decisions that store or delete one named record."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.references import build_child_conditions, build_parent_conditions
from wharf.cluster.state import Replica, Table
from wharf.contract.model.log import WRITE_INDEX, Cause, Condition, DeleteRecord, PutRecord, Write
from wharf.contract.model.record import hash_content
from wharf.contract.model.state_machines.machine import InvalidTransition
from wharf.contract.model.times import DecisionContext

__all__ = [
    "Decision",
    "DecisionContext",
    "RefusedServices",
    "WriteBuilder",
    "build_delete_decision",
    "build_store_decision",
    "set_written_index",
]

T = TypeVar("T")
RecordT = TypeVar("RecordT", bound=msgspec.Struct)


class RefusedServices(msgspec.Struct, frozen=True):
    """A number of service registrations that a node reported for an allocation although they are not of its job."""

    allocation_id: str
    count: int


class Decision(msgspec.Struct, Generic[T], frozen=True):
    """The write to commit, and the function that builds the reply from the log index of that write.

    If `write` is `None`, `build_reply` is called with the index of the snapshot.
    """

    write: Write | None  # `None`: nothing has to change.
    build_reply: Callable[[int], T]  # Takes the log index of the write and returns the reply for the caller.
    invalid_transitions: tuple[InvalidTransition, ...] = ()
    """Requested state changes that the state tables do not allow. They are left out of the write; the caller logs
    them.
    """
    refused_services: tuple[RefusedServices, ...] = ()
    """Reported services that are left out of the write; the caller logs them."""

    @property
    def has_rejected_parts(self) -> bool:
        """Whether the write leaves out a part of the request, which the caller logs."""
        return bool(self.invalid_transitions or self.refused_services)


class WriteBuilder:
    """Collects the changes of one write, and the conditions under which it may be committed."""

    def __init__(self, snapshot: Replica) -> None:
        self.snapshot = snapshot
        self.changes: list[PutRecord | DeleteRecord] = []
        self.conditions: list[Condition] = []

    def put(self, table: Table[RecordT], record: RecordT) -> None:
        """Add the change that stores this record in the table."""
        self.changes.append(table.build_put(record))

    def delete(self, table: Table[Any], *key: str | int) -> None:
        """Add the change that deletes the record under this key from the table."""
        self.changes.append(table.build_delete(*key))

    def require_unchanged_record(self, table: Table[RecordT], record: RecordT) -> None:
        """Add the condition that this record does not change before the commit."""
        self.conditions.append(self.snapshot.build_record_condition(table, record))

    def require_unchanged_key(self, table: Table[Any], *key: str | int) -> None:
        """Add the condition that the record under the key neither changes nor is created before the commit."""
        self.conditions.append(self.snapshot.build_key_condition(table, *key))

    def require_unchanged_parents(self, table: Table[RecordT], record: RecordT) -> None:
        """Add the conditions that the records that this record needs, such as its namespace, do not change."""
        self.conditions += build_parent_conditions(self.snapshot, table, record)

    def build(self, write_kind: str, cause: Cause) -> Write:
        """Return the write with the collected changes and conditions. `write_kind` is its name in the log."""
        return Write(write_kind, cause, self.changes, self.conditions)


def set_written_index(record: RecordT, index: int) -> RecordT:
    """Return a record that was written at log `index`, with the create and modify indexes that it then has."""
    # mypy cannot express "a Struct with these fields".
    create_index = record.create_index  # type: ignore[attr-defined]
    return replace(record, create_index=index if create_index == WRITE_INDEX else create_index, modify_index=index)


def build_store_decision(
    snapshot: Replica,
    table: Table[RecordT],
    requested: RecordT,
    stored: RecordT | None,
    write_kind: str,
    cause: Cause,
    *,
    build_reply: Callable[[int, RecordT], T],
    conditions: Iterable[Condition] = (),
) -> Decision[T]:
    """Return the decision that stores a named record, such as a policy; it writes nothing if the stored content is the
    same.

    `stored` is the record under the same key, or `None`. `write_kind` is the name of the write in the log.
    `build_reply` receives the index of the record's last change, and the record with its indexes. `conditions` are
    further conditions, besides that the record under the key is unchanged.
    """
    old: Any = stored  # mypy cannot express "a Struct with these fields".
    content_hash = hash_content(requested)
    if old is not None and old.hash == content_hash:
        return Decision(None, lambda _index: build_reply(old.modify_index, old))
    create_index = WRITE_INDEX if old is None else old.create_index
    record = replace(requested, hash=content_hash, create_index=create_index, modify_index=0)
    key_condition = snapshot.build_key_condition(table, table.get_key(record))
    parent_conditions = build_parent_conditions(snapshot, table, record)
    write = Write(write_kind, cause, [table.build_put(record)], [key_condition, *parent_conditions, *conditions])
    return Decision(write, lambda index: build_reply(index, set_written_index(record, index)))


def build_delete_decision(
    snapshot: Replica, table: Table[Any], *key: str, write_kind: str, cause: Cause
) -> Decision[int]:
    """Return the decision that deletes the record under this key.

    It conflicts if the record changes before the commit, or a record that may refer to it.

    The reply is the index of the write. `write_kind` is the name of the write in the log.
    """
    conditions = [
        snapshot.build_key_condition(table, *key),
        *build_child_conditions(snapshot, table, table.build_key(*key)),
    ]
    write = Write(write_kind, cause, [table.build_delete(*key)], conditions)
    return Decision(write, lambda index: index)
