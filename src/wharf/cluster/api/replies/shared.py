"""Results of reads that several callers share, with the bodies encoded from them.

Callers share a result if their query keys and their rights are equal. Evaluation and encoding are done elsewhere.
"""

import asyncio
from collections.abc import Hashable
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
from wharf.contract.model.refusal import Refusal
from wharf.contract.wire.endpoint_table import Endpoint

REPLY_PARAMETERS: Final = frozenset(("index", "wait", "stale", "region", "pretty"))
"""Query parameters that select how to reply; all others select what to read and are part of the query key."""
MAX_SHARED_REPLIES: Final = 10_000
"""Limits the entries that one index of the replica may add to the shared reply cache."""
MAX_SHARED_REPLY_BYTES: Final = 32 * 1024 * 1024
"""Limits the memory of encoded bodies in the shared reply cache."""


class EncodedRead(msgspec.Struct, frozen=True):
    """An encoded body, or the refusal to send instead of it, and the log index of the data."""

    index: int
    body: ReplyBody | None = None
    refusal: Refusal | None = None
    next_token: str = ""


class SharedReply:
    """The result of one evaluation and the bodies encoded from it, plain and indented."""

    __slots__ = ("encoded", "encoding_tasks", "options", "request", "result")

    def __init__(self, result: ReadResult | Listing[Any], request: Request, options: QueryOptions) -> None:
        self.result = result
        self.request = request
        self.options = options
        self.encoded: dict[bool, EncodedRead] = {}  # Key: whether the JSON is indented.
        self.encoding_tasks: dict[bool, asyncio.Task[EncodedRead]] = {}


class SharedReplyCache:
    """Results read at the current index of the replica, by query key and rights. A new index empties the cache."""

    def __init__(self) -> None:
        self._version: tuple[int, int] = (-1, -1)
        self._results: dict[Hashable, ReadResult] = {}
        self._bytes = 0

    def add_bytes(self, size: int) -> None:
        """Count the bytes of a body encoded from a cached result. Above the limit the cache is emptied.

        Requests in flight hold their own reference and are not affected.
        """
        self._bytes += size
        if self._bytes > MAX_SHARED_REPLY_BYTES:
            self._bytes = 0
            self._results = {}

    def store_encoded(self, shared: SharedReply, encoded: EncodedRead, *, is_pretty: bool) -> EncodedRead:
        """Store the encoded reply for the callers that share it, and return it."""
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
    """Return a key of what the request reads, without parameters that only select how to reply."""
    query = tuple(sorted(pair for pair in request.query.items() if pair[0] not in REPLY_PARAMETERS))
    lists = tuple(value for value in request.parameters.values() if isinstance(value, tuple))
    return request.endpoint.name, tuple(request.path_values.values()), query, lists, request.body


def build_rights_key(caller: Caller, endpoint: Endpoint) -> Hashable:
    """Return a key of everything about the caller that the reply can depend on.

    These are the caller's rights, and also the identity where the endpoint's reply is about the caller.
    """
    if isinstance(endpoint.need, AnyToken | VariablePermission):
        return caller.rights, caller.kind, caller.accessor_id, caller.claims
    return caller.rights
