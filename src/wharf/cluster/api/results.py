"""The result types of handlers, and helpers that handlers use to find records. Encoding of results is in `replies`."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from wharf.cluster.api.caller_slots import CallerSlot
from wharf.cluster.api.lists.listing import Listing, return_record
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.rpc.method import RpcMethod
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica, Table, WatchTarget
from wharf.cluster.state.watches import watch_key
from wharf.contract.model.refusal import Refusal, RefusalCode, not_found

ALL_NAMESPACES: Final = "*"

ReadHandler = Callable[[Replica, Request, QueryOptions], ReadResult | Listing[Any]]
"""A handler of a read endpoint. It reads the replica and never waits. It may raise `UnpreparedRead`."""


class MissingRecord(Refusal):
    """The result of reading a record that does not exist: a 404 with a log index, so that a blocking query can wait for
    it.
    """

    def __init__(self, text: str) -> None:
        super().__init__(RefusalCode.NOT_FOUND, text)


class RecordList(msgspec.Struct, frozen=True):
    """A read result that is a list of records, all of which are shown. It is built and encoded in slices."""

    records: Sequence[Any]
    build_view: Callable[[Any], object] = return_record
    """Returns the list item of a record."""
    is_view_small: bool = False
    """Whether the view of a small record is small, because it holds no other records. Otherwise each view is measured."""


class SlicedValue(msgspec.Struct, frozen=True):
    """A read result that takes long to build. It is built in slices on the event loop when the reply is encoded."""

    build: Callable[[SlicedWork], Awaitable[object]]


class DeferredValue(msgspec.Struct, frozen=True):
    """A read result that takes long to build. It is built and encoded off the event loop, within `api.max_view_cpu`.

    `build` must read only records that it was given: the replica changes meanwhile. It is passed a function that returns
    whether the CPU budget is used up, and then returns early with any value. Callers with the same query share it.
    """

    build: Callable[[Callable[[], bool]], object]
    limit_advice: str
    """What a caller can do who exceeds the budget, for the text of the refusal."""


class UnpreparedRead(Exception):
    """Raised by a read handler if its result depends on a value that takes long to compute.

    `prepare` computes the value in slices. Then the handler is called again.
    """

    def __init__(self, prepare: Callable[[SlicedWork], Awaitable[object]]) -> None:
        super().__init__("a value of the read is not computed yet")
        self.prepare = prepare


class BrainQuery(msgspec.Struct, frozen=True):
    """A read result that this server's scheduler process computes when the reply is encoded.

    Callers with the same query share it.
    """

    method: RpcMethod[Any, Any]
    request: object


class SnapshotValue(msgspec.Struct, frozen=True):
    """A read result that takes long to compute from records all over the state, which must not change meanwhile.

    It is computed in a copy of this process when the reply is encoded. Callers with the same query share it.
    """

    compute: Callable[[], object]


class EncodedBody(msgspec.Struct, frozen=True):
    """An already encoded reply body."""

    data: bytes
    content_type: str = "application/msgpack"
    is_indented: bool = False
    """Whether the data is indented already, as a request with `pretty` wants it."""


class StreamedBody(msgspec.Struct, frozen=True):
    """A reply body that is sent in parts until it ends or the client disconnects. `parts` is closed in both cases."""

    parts: AsyncIterator[bytes]
    content_type: str = "application/json"
    headers: Sequence[tuple[bytes, bytes]] = ()
    write_timeout_s: float | None = None
    """Closes the connection of a caller that takes longer to read one part, in seconds; `None` means no limit."""
    is_cut_at_shutdown: bool = False
    """Whether a server that stops cuts the reply off. Otherwise it ends the reply, so that the caller takes it as whole."""
    is_incomplete: Callable[[], bool] | None = None
    """Returns whether the parts so far end within a line. Then a server that stops cuts the reply off all the same."""
    is_access_checked: bool = False
    """Whether `parts` ends itself when the caller loses access. Otherwise the reply is cut off then."""
    wait_until_access_lost: Callable[[], Awaitable[object]] | None = None
    """Waits until the caller has lost access. Set for every stream by the application."""
    slot: CallerSlot | None = None
    """The slot that the stream takes until it ends. Set by the application for `STREAM_ENDPOINTS`."""
    can_compress: bool = False
    """Whether the parts are text, which is compressed for a caller that accepts it. Each part is sent at once all the same."""

    @property
    def is_cut_now(self) -> bool:
        """Whether a server that stops now cuts the reply off."""
        return self.is_cut_at_shutdown or (self.is_incomplete is not None and self.is_incomplete())


class ActionResult(msgspec.Struct, frozen=True):
    """The result of a handler that does more than read the replica."""

    body: object = None
    """The value to send as JSON, an encoded or streamed body, or `None` for no body."""
    index: int = 0
    """Log index for the index header; 0 means no header."""
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ()
    """Further headers, with names in lower case."""


ActionHandler = Callable[[Request], Awaitable[ActionResult]]
"""A handler of an endpoint that does more than read the replica, such as a write."""


def sort_by_creation(records: Iterable[Any]) -> list[Any]:
    """Return the records sorted by create index, then id."""
    return sorted(records, key=get_creation_order)


def get_creation_order(record: Any) -> tuple[int, str]:
    """Return the sort key of records by create index, then id."""
    return record.create_index, record.id


def find_record(
    replica: Replica, table: Table[Any], *key: str, missing_text: str
) -> tuple[Any, int, list[WatchTarget]]:
    """Return what a read of one record needs: the record or a `MissingRecord`, its index, and its watch targets."""
    record = replica.get(table, *key)
    index = replica.get_last_change(table) if record is None else record.modify_index
    return record if record is not None else MissingRecord(missing_text), index, [watch_key(table, *key)]


R = TypeVar("R", bound=msgspec.Struct)


async def require_record(server: Server, table: Table[R], *key: str, not_found_text: str) -> R:
    """Return the record stored under the key. Raises a not-found `Refusal`.

    A record that another server wrote just now may not be in this replica yet, so a miss catches up with the log and
    reads again.
    """
    record = server.replica.get(table, *key)
    if record is None:
        await server.reader.catch_up()
        record = server.replica.get(table, *key)
    if record is None:
        raise not_found(not_found_text)
    return record
