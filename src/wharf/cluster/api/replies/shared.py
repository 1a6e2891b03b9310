"""Results of reads that several callers share, with the bodies encoded from them.

Callers share a result if their query keys and their rights are equal. Evaluation and encoding are done elsewhere.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Final

import msgspec

from wharf.cluster.access import Caller
from wharf.cluster.api.lists.listing import Listing
from wharf.cluster.api.replies.encoding import ReplyBody
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.state import Replica
from wharf.contract.model.acl.permissions import AnyToken, VariablePermission
from wharf.contract.model.refusal import Overloaded, Refusal
from wharf.contract.wire.endpoint_table import Endpoint
from wharf.world import World

REPLY_PARAMETERS: Final = frozenset(("index", "wait", "stale", "region", "pretty"))
"""Query parameters that select how to reply; all others select what to read and are part of the query key."""
MAX_SHARED_REPLIES: Final = 10_000
"""Limits the entries that one index of the replica may add to the shared reply cache."""
MAX_SHARED_REPLY_BYTES: Final = 32 * 1024 * 1024
"""Limits the memory of encoded bodies in the shared reply cache."""


class EncodedRead(msgspec.Struct, frozen=True):
    """The encoded result of a read: a body, or the refusal to send instead."""

    index: int
    """Log index of the data."""
    body: ReplyBody | None = None
    refusal: Refusal | None = None
    next_token: str = ""
    """The token of the next page; empty on the last page."""


class SharedReply:
    """The result of a read that callers share, and the bodies encoded from it: plain JSON and indented JSON."""

    __slots__ = ("encoded", "encoding_tasks", "options", "request", "result")

    def __init__(self, result: ReadResult | Listing[Any], request: Request, options: QueryOptions) -> None:
        self.result = result
        self.request = request
        self.options = options
        self.encoded: dict[bool, EncodedRead] = {}  # Key: whether the JSON is indented.
        self.encoding_tasks: dict[bool, asyncio.Task[EncodedRead]] = {}

    async def encode_once(
        self,
        world: World,
        encoding: Coroutine[Any, Any, EncodedRead],
        *,
        is_pretty: bool,
        on_end: Callable[[], None] = lambda: None,
    ) -> EncodedRead:
        """Run the encoding that further callers wait for, and return what it returns. `on_end` is called in any case.

        It runs in a task of its own: if this caller disconnects, the others still get the body. A copy of the process that
        serves one request has no event loop and no other callers, so it needs no task.
        """
        if not has_event_loop():
            try:
                return await encoding
            finally:
                on_end()
        task = self.encoding_tasks[is_pretty] = world.start_task(encoding, name="reply")
        task.add_done_callback(lambda _: on_end())  # Also if the task is cancelled before it begins.
        task.add_done_callback(partial(self._drop_refused_task, is_pretty))
        return await asyncio.shield(task)

    def _drop_refused_task(self, is_pretty: bool, task: asyncio.Task[EncodedRead]) -> None:
        """Let the next caller start again if this task was refused because the server was busy."""
        if not task.cancelled() and isinstance(task.exception(), Overloaded):
            self.encoding_tasks.pop(is_pretty, None)


def has_event_loop() -> bool:
    """Return whether an event loop runs. It does not in a copy of the process that serves one request."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class SharedReplyCache:
    """A cache of read results at the current index of the replica, by query and rights. A new index empties it."""

    def __init__(self) -> None:
        self._version: tuple[int, int] = (-1, -1)
        self._results: dict[Hashable, ReadResult] = {}
        self._bytes = 0

    def add_bytes(self, size: int) -> None:
        """Add `size` to the memory of bodies encoded from cached results. Above the limit, the cache is emptied.

        Requests in flight have their own reference and are not affected.
        """
        self._bytes += size
        if self._bytes > MAX_SHARED_REPLY_BYTES:
            self._bytes = 0
            self._results = {}

    def store_encoded(self, shared: SharedReply, encoded: EncodedRead, *, is_pretty: bool) -> EncodedRead:
        """Store the encoded result in `shared`, for the callers that share it, and return it."""
        shared.encoded[is_pretty] = encoded
        if encoded.body is not None:
            self.add_bytes(encoded.body.size)
        return encoded

    def get(self, replica: Replica, key: Hashable) -> ReadResult | None:
        """Return the result cached under the key at the replica's current index, or `None`."""
        version = (replica.epoch, replica.index)
        if version != self._version:
            self._version = version
            self._bytes = 0
            self._results = {}
        return self._results.get(key)

    def put(self, key: Hashable, result: ReadResult) -> None:
        """Cache the result, unless the cache is full."""
        if len(self._results) < MAX_SHARED_REPLIES:
            self._results[key] = result


def build_query_key(request: Request) -> Hashable:
    """Return a value that is equal for requests that read the same.

    It ignores parameters that only select how to reply, such as `wait` and `pretty`.
    """
    query = tuple(sorted(pair for pair in request.query.items() if pair[0] not in REPLY_PARAMETERS))
    lists = tuple(value for value in request.parameters.values() if isinstance(value, tuple))
    return request.endpoint.name, tuple(request.path_values.values()), query, lists, request.body


def build_rights_key(caller: Caller, endpoint: Endpoint) -> Hashable:
    """Return a value that is equal for callers to whom the endpoint sends the same reply.

    This is the callers' rights and, where the reply is about the caller, also the identity.
    """
    if isinstance(endpoint.need, AnyToken | VariablePermission):
        return caller.rights, caller.kind, caller.accessor_id, caller.claims
    return caller.rights
