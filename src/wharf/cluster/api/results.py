"""What handlers give back, and the small words in which reads of tables are said.

Finding the record that a write is about, before it is asked whether the caller may write it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from wharf.cluster.api.lists.listing import Listing
from wharf.cluster.api.requests.request import QueryOptions, Request
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.rpc.method import RpcMethod
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica, Table, WatchTarget
from wharf.cluster.state import watches as watch
from wharf.contract.model.refusal import Refusal, RefusalCode, not_found

ALL_NAMESPACES: Final = "*"

ReadHandler = Callable[[Replica, Request, QueryOptions], ReadResult | Listing[Any]]
"""A handler that reads. It never waits."""


class MissingRecord(Refusal):
    """A read of what is not there: a 404 that carries an index, and may be waited on."""

    def __init__(self, text: str) -> None:
        super().__init__(RefusalCode.NOT_FOUND, text)


class BrainQuery(msgspec.Struct, frozen=True):
    """What this server's own brain thinks through: asked when the body is made, once for all who ask the same."""

    method: RpcMethod[Any, Any]
    request: object


class EncodedBody(msgspec.Struct, frozen=True):
    """A body that is encoded already."""

    data: bytes
    content_type: str = "application/msgpack"


class StreamedBody(msgspec.Struct, frozen=True):
    """A body that is sent part by part, for as long as the caller listens. Closed when the caller has gone."""

    parts: AsyncIterator[bytes]
    content_type: str = "application/json"
    headers: Sequence[tuple[bytes, bytes]] = ()
    write_timeout_s: float | None = None
    """A caller that takes longer to read a part is let go; None: it may take as long as it likes."""


class ActionResult(msgspec.Struct, frozen=True):
    """The reply's body, and the index for its header; 0: no header. `body` None: the reply has no body."""

    body: object = None
    index: int = 0
    status: int = 200


ActionHandler = Callable[[Request], Awaitable[ActionResult]]
"""A handler that does more than read the replica."""


def sort_by_creation(records: Iterable[Any]) -> list[Any]:
    """The records of an index value, which has no order of its own."""
    return sorted(records, key=lambda record: (record.create_index, record.id))


def find_record(
    replica: Replica, table: Table[Any], *key: str, missing_text: str
) -> tuple[Any, int, list[WatchTarget]]:
    """The record, or the word that it is missing, with its index and what to watch."""
    record = replica.get(table, *key)
    index = replica.get_last_change(table) if record is None else record.modify_index
    return record if record is not None else MissingRecord(missing_text), index, [watch.watch_key(table, *key)]


R = TypeVar("R", bound=msgspec.Struct)


async def require_record(server: Server, table: Table[R], *key: str, not_found_text: str) -> R:
    """The record under the key. One that was made elsewhere just now is known after a barrier."""
    record = server.replica.get(table, *key)
    if record is None:
        await server.reader.catch_up()
        record = server.replica.get(table, *key)
    if record is None:
        raise not_found(not_found_text)
    return record
