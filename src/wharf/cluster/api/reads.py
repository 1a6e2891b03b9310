"""Execution of reads: query parameters, catching up with the log, access checks, blocking queries and reply headers.

A read handler only reads the replica. This module does what all reads have in common. Callers with the same query and
the same rights share one evaluation and one encoded body.
"""

import asyncio
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

import msgspec

from wharf.cluster.access import RightsNotCompiled
from wharf.cluster.api.access_control import CallerAuthenticator, compile_rights_off_loop, require_endpoint_access
from wharf.cluster.api.asgi import HeaderList, Receive
from wharf.cluster.api.connection import DisconnectWatcher, HttpConnection
from wharf.cluster.api.handler_table import JOINED_FIELD_READERS, build_read_handlers
from wharf.cluster.api.held_memory import HeldMemory
from wharf.cluster.api.lists.encoder import ListEncoder
from wharf.cluster.api.lists.filters import ListFilters
from wharf.cluster.api.lists.listing import Listing
from wharf.cluster.api.off_loop import OffLoopExecutor, needs_worker
from wharf.cluster.api.pacing import ReplyPacer
from wharf.cluster.api.replies.cors import list_cors_methods
from wharf.cluster.api.replies.encoding import EMPTY_REPLY_BODY, encode_body
from wharf.cluster.api.replies.items import RECORDS_PER_CHECK
from wharf.cluster.api.replies.pieces import LightRecords, encode_deferred, encode_in_slices
from wharf.cluster.api.replies.sender import JSON_HEADER, HttpReply, build_refusal_reply
from wharf.cluster.api.replies.shared import (
    EncodedRead,
    SharedReply,
    SharedReplyCache,
    build_query_key,
    build_rights_key,
)
from wharf.cluster.api.requests.parameters import QueryOptions, is_pretty, parse_query_options
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.requests.targets import RequestTarget
from wharf.cluster.api.results import (
    BrainQuery,
    DeferredValue,
    RecordList,
    SlicedValue,
    SnapshotValue,
    UnpreparedRead,
)
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.loop_slots import LoopSlots
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.contract.model.acl.permissions import PublicAccess
from wharf.contract.model.refusal import Refusal, invalid_request

BUILT_VALUES: Final = frozenset((RecordList, SlicedValue, SnapshotValue, DeferredValue, BrainQuery))
"""The types of values that are built when the reply is encoded."""
LARGE_BLOCKING_BODY_TEXT: Final = "a blocking query must not have a large body (documentation page Limits of request bodies): name fewer objects, or leave out `index`"
TOKEN_SAFE_CHARACTERS: Final = "".join(map(chr, range(33, 127))).replace("%", "")
"""Characters of a page token that its header holds unescaped. Job ids in tokens may contain any character."""
ASSIGNMENTS_ENDPOINT: Final = "node.desired"
"""The blocking query of nodes. Its replies are paced, because each one causes several requests (ADR 95)."""


class ReadExecutor:
    """Executes read endpoints. Callers with the same query and rights share results and encoded bodies."""

    def __init__(
        self,
        server: Server,
        authenticator: CallerAuthenticator,
        off_loop: OffLoopExecutor,
        *,
        node_requests: LoopSlots,
        is_nomad_compatible: bool = False,
    ) -> None:
        """`node_requests` are the requests of nodes that replies to nodes cause. With `is_nomad_compatible`, lists treat `per_page` and `filter` as Nomad does (0068)."""
        self._server = server
        self._off_loop = off_loop
        self._is_nomad_compatible = is_nomad_compatible
        self._authenticator = authenticator
        self.handlers = build_read_handlers(server)
        self._filters = ListFilters(server.replica, JOINED_FIELD_READERS)
        self._shared_replies = SharedReplyCache()
        self._light_records = LightRecords()
        self._node_pacer = ReplyPacer(node_requests)
        self.list_encoder = ListEncoder(server, self._filters, self._shared_replies)

    def parse_target(self, request: Request, raw_path: bytes) -> RequestTarget:
        """Return the parsed target (endpoint, query and options) of a read.

        Raises `Refusal` if a parameter is invalid.
        """
        return RequestTarget(
            endpoint=request.endpoint,
            path_values=request.path_values,
            query=request.query,
            parameters=request.parameters,
            options=self._parse_options(request),
            query_key=build_query_key(request),
            is_pretty=is_pretty(request.query),
            is_cors_allowed=bool(list_cors_methods(raw_path.decode("latin-1"))),
        )

    async def execute(
        self,
        request: Request,
        target: RequestTarget,
        receive: Receive,
        connection: HttpConnection | None,
        *,
        on_wait: Callable[[], None] = lambda: None,
    ) -> HttpReply:
        """Return the reply of a read. With an `index` parameter, first wait until the result's index exceeds it. Raises
        `Refusal`.

        Unless stale data is allowed, the replica first catches up with the log. A worker executes reads with large
        bodies. `on_wait` is called when a blocking query begins to wait.
        """
        if request.body and needs_worker(request):
            if target.options.index > 0 and target.endpoint.can_block:
                raise invalid_request(LARGE_BLOCKING_BODY_TEXT)
            return await self._off_loop.run_read(request, lambda: self._execute(request, target, receive, connection))
        return await self._execute(request, target, receive, connection, on_wait)

    async def _execute(
        self,
        request: Request,
        target: RequestTarget,
        receive: Receive,
        connection: HttpConnection | None,
        on_wait: Callable[[], None] = lambda: None,
    ) -> HttpReply:
        """Return the reply of a read, executed in this process."""
        if not target.options.is_stale_allowed:
            try:
                await self._server.reader.catch_up()
            except Refusal as refusal:
                raise self._authenticator.explain_refusal(self._server, refusal, request.headers) from None
        while True:
            try:
                if target.options.index > 0 and target.endpoint.can_block:
                    result = await self._evaluate_blocking(request, target, receive, connection, on_wait)
                else:
                    result = self._evaluate(self._server.replica, request, target)
                break
            except RightsNotCompiled as missing:
                await compile_rights_off_loop(self._server, missing)
            except UnpreparedRead as unprepared:
                await self._server.off_loop.loop_slots.begin()
                await unprepared.prepare(self.list_encoder.make_work(request.caller.owner_key))
        shared = result.value
        assert isinstance(shared, SharedReply), "_evaluate wraps every result in a SharedReply"
        if isinstance(shared.result, Listing) and not (shared.encoded or shared.encoding_tasks):
            shared = await self._await_slot(shared, request, target)
        encoded = shared.encoded.get(target.is_pretty) or await self._encode(shared, is_pretty=target.is_pretty)
        return self._build_reply(encoded)

    async def _await_slot(self, shared: SharedReply, request: Request, target: RequestTarget) -> SharedReply:
        """Wait until the loop has time for a list, and return the list as it is then."""
        replica = self._server.replica
        version = (replica.epoch, replica.index)
        await self._server.off_loop.loop_slots.begin()
        while (replica.epoch, replica.index) != version:
            version = (replica.epoch, replica.index)
            try:
                result = self._evaluate(replica, request, target)
            except RightsNotCompiled as missing:
                await compile_rights_off_loop(self._server, missing)
                version = (0, -1)
            else:
                assert isinstance(result.value, SharedReply), "_evaluate wraps every result in a SharedReply"
                shared = result.value
        return shared

    def _parse_options(self, request: Request) -> QueryOptions:
        """Return the query options. Those that the endpoint does not support are reset. Raises `Refusal` for an invalid
        one.

        A filter is compiled here, so that an invalid filter is refused before the read.
        """
        options = parse_query_options(request.query, is_nomad_compatible=self._is_nomad_compatible)
        lists = request.endpoint.list_features
        if lists is None:
            return options
        if options.filter:
            narrowing = lists.nomad_filtering_parameters if self._is_nomad_compatible else lists.filtering_parameters
            if any(request.query.get(name) for name in narrowing) or (
                lists.has_prefix and options.prefix and not self._is_nomad_compatible
            ):
                raise invalid_request("Filter expression cannot be used with other filter parameters")
            if lists.can_filter:
                self._filters.compile(options.filter, request.endpoint)
        can_reverse = lists.can_reverse or bool(request.query.get(lists.reversing_parameter))
        if options.is_reversed and not can_reverse:
            options = msgspec.structs.replace(options, is_reversed=False)
        if not lists.has_pages:
            options = msgspec.structs.replace(options, per_page=0, next_token="")
        return options

    # -- evaluation --------------------------------------------------------------------------------------------------

    def _evaluate(self, replica: Replica, request: Request, target: RequestTarget) -> ReadResult:
        """Check the caller's rights, call the handler, and return its result, wrapped in a `SharedReply`.

        A result that another caller with the same query and rights read at the same index is reused. A blocking query
        calls this again on every wake-up, because rights may be revoked while it waits.
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
        handler_result = self.handlers[endpoint.name](replica, request, options)
        result = ReadResult(SharedReply(handler_result, request, options), handler_result.index, handler_result.watched)
        if is_shareable:
            self._shared_replies.put(key, result)
        return result

    async def _evaluate_blocking(
        self,
        request: Request,
        target: RequestTarget,
        receive: Receive,
        connection: HttpConnection | None,
        on_wait: Callable[[], None],
    ) -> ReadResult:
        """Return the result of a blocking query: wait until its index exceeds the requested one, or the time is over.

        The time is `wait_s` plus up to 1/16, so that many queries do not end at the same moment. A disconnect of the
        client ends the wait.
        """
        options, world = target.options, self._server.world
        jitter_s = world.random.random() * options.wait_s / 16
        # Stop waiting when the caller disconnects; otherwise clients that reconnect often would pile up waiting reads.
        disconnect_watcher = DisconnectWatcher(world, receive, connection)

        def begin_wait(cancel: Callable[[], None]) -> None:
            on_wait()
            disconnect_watcher.start(cancel)

        async def wait_for_slot() -> None:
            on_wait()
            await self._node_pacer.wait_for_slot()

        try:
            return await self._server.reader.read_blocking(
                lambda replica: self._evaluate(replica, request, target),
                index=options.index,
                wait_s=options.wait_s + jitter_s,
                on_wait=begin_wait,
                is_caught_up=not options.is_stale_allowed,
                wait_for_slot=wait_for_slot if target.endpoint.name == ASSIGNMENTS_ENDPOINT else None,
            )
        finally:
            disconnect_watcher.stop()

    # -- encoding ----------------------------------------------------------------------------------------------------

    async def _encode(self, shared: SharedReply, *, is_pretty: bool) -> EncodedRead:
        """Return the encoded result. Callers that share the result wait for one encoding."""
        result = shared.result
        if isinstance(result, Listing):
            return await self.list_encoder.encode(shared, result, is_pretty=is_pretty)
        if self._takes_long(result.value):
            task = shared.encoding_tasks.get(is_pretty)
            if task is not None:
                return await asyncio.shield(task)
            building = self._build_and_encode(shared, result, is_pretty=is_pretty)
            return await shared.encode_once(self._server.world, building, is_pretty=is_pretty)
        if isinstance(result.value, Refusal):
            encoded = EncodedRead(result.index, refusal=result.value)
        else:
            value = result.value
            if type(value) is RecordList:
                value = [value.build_view(record) for record in value.records]
            encoded = EncodedRead(result.index, encode_body(value, is_pretty=is_pretty))
        return self._shared_replies.store_encoded(shared, encoded, is_pretty=is_pretty)

    def _takes_long(self, value: object) -> bool:
        """Return whether the value is built or encoded in several steps."""
        if type(value) is RecordList:
            return not self._is_short_list(value)
        return type(value) in BUILT_VALUES or not self._light_records.is_light(value)

    def _is_short_list(self, record_list: RecordList) -> bool:
        """Return whether the list is encoded in one step."""
        records = record_list.records
        is_short = record_list.is_view_small and len(records) <= RECORDS_PER_CHECK
        return is_short and all(map(self._light_records.is_light, records))

    async def _build_and_encode(self, shared: SharedReply, result: ReadResult, *, is_pretty: bool) -> EncodedRead:
        """Build a value that takes long, and return it encoded.

        It is built in slices, on a thread, in a copy of this process, or in the scheduler process.
        """
        server, value = self._server, result.value
        owner = shared.request.caller.owner_key
        work = self.list_encoder.make_work(owner)
        try:
            if isinstance(value, RecordList):
                body = await self.list_encoder.encode_records(value, shared, is_pretty=is_pretty)
            elif isinstance(value, SnapshotValue):
                body = await self._off_loop.compute_body(shared.request, value.compute, has_indent=is_pretty)
            elif isinstance(value, DeferredValue):
                budget = server.read_limits.make_view_budget(value.limit_advice)
                work = SlicedWork(server.world, server.off_loop, budget, owner)
                body = await encode_deferred(value.build, work, is_pretty=is_pretty)
            else:
                await server.off_loop.loop_slots.begin()
                work.restart()
                if isinstance(value, SlicedValue):
                    value = await value.build(work)
                elif isinstance(value, BrainQuery):
                    value = await server.leader.call_member(server.identity.member_id, value.method, value.request)
                held = HeldMemory(self.list_encoder.reply_memory)
                body = await encode_in_slices(value, work, held, is_pretty=is_pretty)
        finally:
            # After a failure the next caller must start again, not wait for the failed task.
            shared.encoding_tasks.pop(is_pretty, None)
        return self._shared_replies.store_encoded(shared, EncodedRead(result.index, body), is_pretty=is_pretty)

    def _build_reply(self, encoded: EncodedRead) -> HttpReply:
        """Return the reply with its index, leader and page headers."""
        reader = self._server.reader
        headers: HeaderList = [
            (b"x-cluster-index", b"%d" % max(1, encoded.index)),
            (b"x-cluster-knownleader", b"true" if reader.has_leader() else b"false"),
            (b"x-cluster-lastcontact", b"%d" % self._server.get_leader_contact_ms()),
        ]
        if encoded.refusal is not None:
            return build_refusal_reply(encoded.refusal, *headers)
        if encoded.next_token:
            headers.append((b"x-cluster-nexttoken", quote(encoded.next_token, safe=TOKEN_SAFE_CHARACTERS).encode()))
        return HttpReply(200, [JSON_HEADER, *headers], encoded.body or EMPTY_REPLY_BODY)
