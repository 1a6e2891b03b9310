"""What handlers give back, and the small words in which reads of tables are said."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from wharf.api.request import ReadOptions, Request
from wharf.model.refusal import Code, Refusal
from wharf.server.reading import Found
from wharf.state import Replica, Table, Watched
from wharf.state import watches as watch

EVERY_NAMESPACE: Final = "*"

Reading = Callable[[Replica, Request, ReadOptions], Found]
"""A handler that reads. It never waits."""


class Missing(Refusal):
    """A read of what is not there: a 404 that carries an index, and may be waited on."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.UNKNOWN, text)


class Packed(msgspec.Struct, frozen=True):
    """A body that is encoded already."""

    data: bytes


class Done(msgspec.Struct, frozen=True):
    """The reply's body, and the index for its header; 0: no header."""

    body: object
    index: int = 0
    status: int = 200


def in_namespace(records: Iterable[Any], options: ReadOptions) -> list[Any]:
    if options.namespace == EVERY_NAMESPACE:
        return list(records)
    return [record for record in records if record.namespace == options.namespace]


def listed(replica: Replica, table: Table[Any], records: list[Any], options: ReadOptions) -> Found:
    """A whole table's list."""
    if options.reverse:
        records.reverse()
    return Found(records, replica.last_change(table), [watch.whole(table)])


def by_id(replica: Replica, table: Table[Any], options: ReadOptions) -> Iterable[Any]:
    """In order of creation; with a prefix, in order of id."""
    return replica.by_key(table, prefix=options.prefix) if options.prefix else replica.all(table)


def by_creation(records: Iterable[Any]) -> list[Any]:
    """The records of an index value, which has no order of its own."""
    return sorted(records, key=lambda record: (record.create_index, record.id))


def one(replica: Replica, table: Table[Any], *key: str, missing: str) -> tuple[Any, int, list[Watched]]:
    """The record, or the word that it is missing, with its index and what to watch."""
    record = replica.get(table, *key)
    index = replica.last_change(table) if record is None else record.modify_index
    return record if record is not None else Missing(missing), index, [watch.one(table, *key)]
