"""Execution of reads: query parameters, catching up with the log, access checks, blocking queries and list pages.

A read handler only reads the replica. This module does what all reads have in common. Callers with the same query and
the same rights share one evaluation and one encoded body.
"""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import msgspec

from wharf.cluster.access import Caller
from wharf.cluster.api.access_control import CallerAuthenticator, require_endpoint_access
from wharf.cluster.api.connection import DisconnectWatcher, HttpConnection
from wharf.cluster.api.handler_table import JOINED_FIELD_READERS, build_read_handlers
from wharf.cluster.api.lists.cache import CachedList, ListCache, ListChanges
from wharf.cluster.api.lists.listing import ALL_NAMESPACES, ListCacheSpec, Listing
from wharf.cluster.api.lists.pages import ListPage, RecordTest
from wharf.cluster.api.replies.encoding import (
    EncodedRecordCache,
    EncodeRecords,
    ListBodyCache,
    ReplyBody,
    encode_body,
    encode_json,
    encode_list,
)
from wharf.cluster.api.requests.body import Receive
from wharf.cluster.api.requests.parameters import QueryOptions, parse_query_options
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.requests.targets import RequestTarget
from wharf.cluster.api.results import BrainQuery
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.contract.model.acl.permissions import AnyToken, PublicAccess, VariablePermission
from wharf.contract.model.refusal import Refusal, invalid_request
from wharf.contract.wire.endpoint_table import Endpoint
from wharf.languages.filters import FilterError, FilterSubject, FilterTypeError, compile_filter

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


class ReadExecutor:
    """Executes read endpoints and caches what can be shared between callers."""

    def __init__(self, server: Server, authenticator: CallerAuthenticator) -> None:
        self._server = server
        self._authenticator = authenticator
        self._handlers = build_read_handlers(server)
        self._shared_replies = SharedReplyCache()
        self._bodies = ListBodyCache()
        self._encoded_records = EncodedRecordCache()
        self._cached_lists = ListCache()
        self._subjects: dict[str, FilterSubject] = {}

    def _subject(self, endpoint: Endpoint) -> FilterSubject:
        """Return the field definitions that the endpoint's filter expressions are compiled against, built on first use."""
        subject = self._subjects.get(endpoint.name)
        if subject is None:
            assert endpoint.list_features is not None, f"{endpoint.name} has no list features"
            joins = JOINED_FIELD_READERS.get(endpoint.list_features.record, {})
            reads = {name: join(self._server.replica) for name, join in joins.items()}
            subject = self._subjects[endpoint.name] = endpoint.list_features.build_filter_subject(reads)
        return subject

    async def execute(
        self, request: Request, target: RequestTarget, receive: Receive, connection: HttpConnection | None
    ) -> EncodedRead:
        """Return the encoded reply of a read. With an `index` parameter, first wait until the data changed.

        Unless stale data is allowed, the replica first catches up with the log. Raises `Refusal`.
        """
        if not target.options.is_stale_allowed:
            await self._server.reader.catch_up()
        if target.options.index > 0 and target.endpoint.can_block:
            result = await self._evaluate_blocking(request, target, receive, connection)
        else:
            result = self._evaluate(self._server.replica, request, target)
        shared = result.value
        assert isinstance(shared, SharedReply), "_evaluate wraps every result in a SharedReply"
        return shared.encoded.get(target.is_pretty) or await self._encode(shared, pretty=target.is_pretty)

    def parse_options(self, request: Request) -> QueryOptions:
        """Return the query options that all reads share. Raises `Refusal` for an invalid one, filters included."""
        options = parse_query_options(request.query)
        lists = request.endpoint.list_features
        if lists is None:
            return options
        if options.filter and lists.can_filter:
            _compile_record_filter(options.filter, self._subject(request.endpoint))
            if any(request.query.get(name) for name in lists.filtering_parameters):
                raise invalid_request("Filter expression cannot be used with other filter parameters")
        if options.is_reversed and not lists.can_reverse:
            options = msgspec.structs.replace(options, is_reversed=False)
        if not lists.has_pages:
            options = msgspec.structs.replace(options, per_page=0, next_token="")
        return options

    # -- evaluation --------------------------------------------------------------------------------------------------

    def _evaluate(self, replica: Replica, request: Request, target: RequestTarget) -> ReadResult:
        """Check the caller's rights and return the handler's result, wrapped in a `SharedReply`.

        A blocking query calls this again on every wake-up, because rights may be revoked while it waits.
        """
        endpoint, options = target.endpoint, target.options
        caller = self._authenticator.authenticate(replica, endpoint, request.headers)
        # Endpoints that authenticate the caller themselves (such as node endpoints) never share replies.
        is_shareable = endpoint.can_block and not isinstance(endpoint.need, PublicAccess) and not caller.is_refused
        key = (target.query_key, build_rights_key(caller, endpoint)) if is_shareable else None
        if is_shareable:
            cached = self._shared_replies.get(replica, key)
            if cached is not None:
                return cached  # A caller with the same rights and query key already passed the access check.
        require_endpoint_access(caller, endpoint, namespace=options.namespace, path_values=request.path_values)
        if caller is not request.caller:
            request = msgspec.structs.replace(request, caller=caller)
        handler_result = self._handlers[endpoint.name](replica, request, options)
        result = ReadResult(SharedReply(handler_result, request, options), handler_result.index, handler_result.watched)
        if is_shareable:
            self._shared_replies.put(key, result)
        return result

    async def _evaluate_blocking(
        self, request: Request, target: RequestTarget, receive: Receive, connection: HttpConnection | None
    ) -> ReadResult:
        """Evaluate a blocking query: wait for an index above `index`, for up to `wait_s` plus 1/16 jitter."""
        options, world = target.options, self._server.world
        jitter_s = world.random.random() * options.wait_s / 16
        # Stop waiting when the caller disconnects; otherwise clients that reconnect often would pile up waiting reads.
        disconnect_watcher = DisconnectWatcher(world, receive, connection)
        try:
            return await self._server.reader.read_blocking(
                lambda replica: self._evaluate(replica, request, target),
                index=options.index,
                wait_s=options.wait_s + jitter_s,
                on_disconnect=disconnect_watcher.start,
                is_caught_up=not options.is_stale_allowed,
            )
        finally:
            disconnect_watcher.stop()

    # -- encoding ----------------------------------------------------------------------------------------------------

    async def _encode(self, shared: SharedReply, *, pretty: bool) -> EncodedRead:
        """Return the encoded result. Callers that share it wait for one encoding task."""
        encoded = shared.encoded.get(pretty)
        if encoded is not None:
            return encoded
        result = shared.result
        if isinstance(result, Listing):
            # The first caller starts a separate task: if that caller disconnects, the others still get the body.
            encoding_task = shared.encoding_tasks.get(pretty)
            if encoding_task is None:
                options, tests = shared.options, self._build_tests(result, shared)
                cache_spec = _get_whole_list_spec(result, options, tests, pretty=pretty)
                cached_list = None if cache_spec is None else self._cached_lists.get(cache_spec.name)
                if cached_list is not None:
                    encoding_task = self._server.world.start_task(
                        self._refresh_cached_list(shared, result, cached_list, cached_list.take_changes()), name="list"
                    )
                    shared.encoding_tasks[pretty] = encoding_task
                    return await asyncio.shield(encoding_task)
                page = ListPage(tests, per_page=options.per_page, make_token=result.make_token)
                page.read_from(result, options.next_token, is_reversed=options.is_reversed)
                if page.is_small:
                    return await self._encode_page(shared, result, page, pretty=pretty)
                if cache_spec is not None:
                    new_list = CachedList(self._server.replica, cache_spec)
                    filling = self._fill_cached_list(shared, result, page, cache_spec, new_list)
                    encoding_task = self._server.world.start_task(filling, name="list")
                else:
                    encoding = self._encode_page(shared, result, page, pretty=pretty)
                    encoding_task = self._server.world.start_task(encoding, name="list")
                encoding_task.add_done_callback(lambda _: page.close())
                shared.encoding_tasks[pretty] = encoding_task
            return await asyncio.shield(encoding_task)
        if isinstance(result.value, BrainQuery):
            query_task = shared.encoding_tasks.get(pretty)
            if query_task is None:
                query_task = self._server.world.start_task(
                    self._query_brain(shared, result, result.value, pretty=pretty), name="think"
                )
                shared.encoding_tasks[pretty] = query_task
            return await asyncio.shield(query_task)
        if isinstance(result.value, Refusal):
            encoded = EncodedRead(result.index, refusal=result.value)
        else:
            encoded = EncodedRead(result.index, encode_body(result.value, is_pretty=pretty))
        return self._store_encoded(shared, encoded, pretty=pretty)

    async def _query_brain(
        self, shared: SharedReply, result: ReadResult, query: BrainQuery, *, pretty: bool
    ) -> EncodedRead:
        """Send the query to this server's scheduler process and return its encoded reply."""
        server = self._server
        try:
            reply = await server.leader.call_member(server.identity.member_id, query.method, query.request)
        finally:
            # After a failure the next caller must start a new query, not wait for the failed one.
            shared.encoding_tasks.pop(pretty, None)
        return self._store_encoded(
            shared, EncodedRead(result.index, encode_body(reply, is_pretty=pretty)), pretty=pretty
        )

    def _build_tests(self, listing: Listing[Any], shared: SharedReply) -> list[RecordTest]:
        """Return the tests that a record must pass to be listed: selection, filter, namespace rights, visibility."""
        request, options = shared.request, shared.options
        lists = request.endpoint.list_features
        assert lists is not None, f"{request.endpoint.name} returns a Listing but declares no list features"
        tests: list[RecordTest] = [] if listing.is_selected is None else [listing.is_selected]
        if options.filter and lists.can_filter:
            tests.append(_compile_record_filter(options.filter, self._subject(request.endpoint)))
        is_everywhere = options.namespace == ALL_NAMESPACES
        if listing.get_namespace is not None and is_everywhere and not request.caller.rights.is_management:
            tests.append(_build_namespace_test(request, listing.get_namespace))
        if listing.is_visible is not None:
            tests.append(listing.is_visible)
        return tests

    async def _encode_page(
        self, shared: SharedReply, listing: Listing[Any], page: ListPage, *, pretty: bool
    ) -> EncodedRead:
        """Return the encoded page. The body of a long list is cached until the replica's data of it changes."""
        key = version = None
        if listing.cache_name and not page.is_small:
            request = shared.request
            key = (build_query_key(request), build_rights_key(request.caller, request.endpoint), pretty)
            version = (self._server.replica.epoch, listing.index)
            cached = self._bodies.get(key, version)
            if cached is not None:
                encoded = EncodedRead(listing.index, cached[0], next_token=cached[1])
                return self._store_encoded(shared, encoded, pretty=pretty)
        await page.finish()
        records, next_token = page.records, page.next_token
        if listing.build_reply is not None:
            body = encode_body(listing.build_reply(records), is_pretty=pretty)
        else:
            body = await encode_list(records, self._build_encoder(listing), is_pretty=pretty)
        if key is not None:
            self._bodies.put(key, version, body, next_token)
        return self._store_encoded(shared, EncodedRead(listing.index, body, next_token=next_token), pretty=pretty)

    async def _fill_cached_list(
        self,
        shared: SharedReply,
        listing: Listing[Any],
        page: ListPage,
        cache_spec: ListCacheSpec,
        cached_list: CachedList,
    ) -> EncodedRead:
        """Encode a whole list and cache it for later requests."""
        try:
            await page.finish()
            body = await cached_list.fill(page.records, self._build_encoder(listing, uses_record_cache=False))
        except BaseException:
            cached_list.close()
            raise
        self._cached_lists.put(cache_spec.name, cached_list)
        return self._store_encoded(shared, EncodedRead(listing.index, body), pretty=False)

    async def _refresh_cached_list(
        self, shared: SharedReply, listing: Listing[Any], cached_list: CachedList, changes: ListChanges
    ) -> EncodedRead:
        """Return a cached list, after encoding again only the records that changed."""
        body = await cached_list.refresh(changes, self._build_encoder(listing, uses_record_cache=False))
        return self._store_encoded(shared, EncodedRead(listing.index, body), pretty=False)

    def _store_encoded(self, shared: SharedReply, encoded: EncodedRead, *, pretty: bool) -> EncodedRead:
        """Store the encoded reply for the callers that share it, and return it."""
        shared.encoded[pretty] = encoded
        if encoded.body is not None:
            self._shared_replies.add_bytes(encoded.body.size)
        return encoded

    def _build_encoder(self, listing: Listing[Any], *, uses_record_cache: bool = True) -> EncodeRecords:
        """Return the function that encodes the listing's records.

        Without `uses_record_cache` new encodings are not stored: a `CachedList` stores its own.
        """
        cache_name, cache = listing.cache_name, self._encoded_records
        build_view, get_dependency = listing.build_view, listing.get_dependency
        if not cache_name:
            return lambda records: [encode_json(build_view(record)) for record in records]

        def encode_records(records: Sequence[Any]) -> list[bytes]:
            dependencies = [None] * len(records) if get_dependency is None else list(map(get_dependency, records))
            cached = cache.get_all(cache_name, records, dependencies)
            return [
                encode_record(record, dependency) if data is None else data
                for data, record, dependency in zip(cached, records, dependencies, strict=True)
            ]

        def encode_record(record: Any, dependency: object) -> bytes:
            data = encode_json(build_view(record))
            if uses_record_cache:
                cache.put(cache_name, record, dependency, data)
            return data

        return encode_records


def _get_whole_list_spec(
    listing: Listing[Any], options: QueryOptions, tests: Sequence[RecordTest], *, pretty: bool
) -> ListCacheSpec | None:  # fmt: skip
    """Return how to cache the list, or `None` if the request wants only a part of it or indented JSON."""
    if pretty or options.per_page or options.next_token or options.is_reversed:
        return None
    cacheable_tests = [] if listing.is_selected is None else [listing.is_selected]
    return listing.cache_spec if list(tests) == cacheable_tests else None


def _compile_record_filter(text: str, subject: FilterSubject) -> RecordTest:
    """Return the test of a filter expression. Raises `Refusal` with Nomad's error texts."""
    try:
        return compile_filter(text, subject).accepts
    except FilterTypeError as error:
        raise invalid_request(f"failed to read result page: {error.text}") from error
    except FilterError as error:
        raise invalid_request(
            f"failed to create result paginator: failed to read filter expression: {error.text}"
        ) from error


def _build_namespace_test(request: Request, get_namespace: Callable[[Any], str]) -> RecordTest:
    """Return a test of whether the caller has the endpoint's permission in a record's namespace.

    The permission is checked once for each namespace.
    """
    permissions: dict[str, bool] = {}

    def can_read(record: Any) -> bool:
        namespace = get_namespace(record)
        has_permission = permissions.get(namespace)
        if has_permission is None:
            has_permission = permissions[namespace] = request.has_permission(namespace=namespace)
        return has_permission

    return can_read


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
