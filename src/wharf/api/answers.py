"""What handlers give back, and the small words in which reads of tables are said."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from wharf.api.listing import Listing
from wharf.api.request import ReadOptions, Request
from wharf.model.refusal import Code, Refusal
from wharf.server.reading import Found
from wharf.server.subject import Subject
from wharf.state import Replica, Table, Watched
from wharf.state import watches as watch

EVERY_NAMESPACE: Final = "*"

Reading = Callable[[Replica, Request, ReadOptions], Found | Listing[Any]]
"""A handler that reads. It never waits."""


class Missing(Refusal):
    """A read of what is not there: a 404 that carries an index, and may be waited on."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.UNKNOWN, text)


class Thinking(msgspec.Struct, frozen=True):
    """What this server's own brain thinks through: asked when the body is made, once for all who ask the same."""

    subject: Subject[Any, Any]
    question: object


class Packed(msgspec.Struct, frozen=True):
    """A body that is encoded already."""

    data: bytes
    content_type: str = "application/msgpack"


class Streamed(msgspec.Struct, frozen=True):
    """A body that is sent part by part, for as long as the caller listens. Closed when the caller has gone."""

    parts: AsyncIterator[bytes]
    content_type: str = "application/json"
    headers: Sequence[tuple[bytes, bytes]] = ()
    write_within_s: float | None = None
    """A caller that takes longer to read a part is let go; None: it may take as long as it likes."""


class Done(msgspec.Struct, frozen=True):
    """The reply's body, and the index for its header; 0: no header. `body` None: the reply has no body."""

    body: object = None
    index: int = 0
    status: int = 200


Act = Callable[[Request], Awaitable[Done]]
"""A handler that does more than read the replica."""


def by_creation(records: Iterable[Any]) -> list[Any]:
    """The records of an index value, which has no order of its own."""
    return sorted(records, key=lambda record: (record.create_index, record.id))


def one(replica: Replica, table: Table[Any], *key: str, missing: str) -> tuple[Any, int, list[Watched]]:
    """The record, or the word that it is missing, with its index and what to watch."""
    record = replica.get(table, *key)
    index = replica.last_change(table) if record is None else record.modify_index
    return record if record is not None else Missing(missing), index, [watch.one(table, *key)]
