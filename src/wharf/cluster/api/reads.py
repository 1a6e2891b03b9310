"""How every read is answered: its parameters, the barrier, the rights of the moment, waiting, and the page of a list.

Handlers only read; what is the same for all reads is done here, once. Those who ask the same with the same rights share
one evaluation and one encoded body.
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
"""Parameters that say how to answer; the rest say what is asked."""
MAX_SHARED_REPLIES: Final = 10_000
MAX_SHARED_REPLY_BYTES: Final = 32 * 1024 * 1024


class EncodedRead(msgspec.Struct, frozen=True):
    """The encoded body, or why there is none (`refusal`: what is not there), with the index that it stands for."""

    index: int
    body: ReplyBody | None = None
    refusal: Refusal | None = None
    next_token: str = ""


class SharedReply:
    """What one evaluation found, and the bodies made of it."""

    __slots__ = ("answered", "asked", "found", "making", "options")

    def __init__(self, found: ReadResult | Listing[Any], asked: Request, options: QueryOptions) -> None:
        self.found = found
        self.asked = asked
        self.options = options
        self.answered: dict[bool, EncodedRead] = {}  # By whether it is pretty.
        self.making: dict[bool, asyncio.Task[EncodedRead]] = {}


class SharedReplyCache:
    """What was found at one index of the replica, for all who ask the same at that index."""

    def __init__(self) -> None:
        self._at: tuple[int, int] = (-1, -1)
        self._kept: dict[Hashable, ReadResult] = {}
        self._bytes = 0

    def add_bytes(self, size: int) -> None:
        """Bodies were made of what is kept. When they are too many, all begins anew; who waits has theirs."""
        self._bytes += size
        if self._bytes > MAX_SHARED_REPLY_BYTES:
            self._bytes = 0
            self._kept = {}

    def get(self, replica: Replica, key: Hashable) -> ReadResult | None:
        at = (replica.epoch, replica.index)
        if at != self._at:
            self._at = at
            self._bytes = 0
            self._kept = {}
        return self._kept.get(key)

    def put(self, key: Hashable, found: ReadResult) -> None:
        if len(self._kept) < MAX_SHARED_REPLIES:
            self._kept[key] = found


class ReadExecutor:
    def __init__(self, server: Server, authenticator: CallerAuthenticator) -> None:
        self._server = server
        self._gate = authenticator
        self._handlers = build_read_handlers(server)
        self._board = SharedReplyCache()
        self._bodies = ListBodyCache()
        self._forms = EncodedRecordCache()
        self._rolls = ListCache()
        self._subjects: dict[str, FilterSubject] = {}

    def _subject(self, endpoint: Endpoint) -> FilterSubject:
        """What the endpoint's filters are compiled against; made when somebody filters."""
        subject = self._subjects.get(endpoint.name)
        if subject is None:
            assert endpoint.list_features is not None, f"{endpoint.name} lists nothing"
            joins = JOINED_FIELD_READERS.get(endpoint.list_features.record, {})
            reads = {name: join(self._server.replica) for name, join in joins.items()}
            subject = self._subjects[endpoint.name] = endpoint.list_features.build_filter_subject(reads)
        return subject

    async def execute(
        self, request: Request, target: RequestTarget, receive: Receive, connection: HttpConnection | None
    ) -> EncodedRead:
        if not target.options.is_stale_allowed:
            await self._server.reader.catch_up()
        if target.options.index > 0 and target.endpoint.can_block:
            found = await self._wait(request, target, receive, connection)
        else:
            found = self._look(self._server.replica, request, target)
        shared = found.value
        assert isinstance(shared, SharedReply), "reads find what is shared"
        return shared.answered.get(target.is_pretty) or await self._answered(shared, pretty=target.is_pretty)

    def parse_options(self, request: Request) -> QueryOptions:
        """The parameters of all reads; what is wrong with them, the filter too, is told before anything is read."""
        options = parse_query_options(request.query)
        lists = request.endpoint.list_features
        if lists is None:
            return options
        if options.filter and lists.can_filter:
            _compiled(options.filter, self._subject(request.endpoint))
            if any(request.query.get(name) for name in lists.filtering_parameters):
                raise invalid_request("Filter expression cannot be used with other filter parameters")
        if options.is_reversed and not lists.can_reverse:
            options = msgspec.structs.replace(options, is_reversed=False)
        if not lists.has_pages:
            options = msgspec.structs.replace(options, per_page=0, next_token="")
        return options

    # -- finding -----------------------------------------------------------------------------------------------------

    def _look(self, replica: Replica, request: Request, target: RequestTarget) -> ReadResult:
        """Who asks is looked at each time: rights may have gone while the request waited."""
        endpoint, options = target.endpoint, target.options
        caller = self._gate.authenticate(replica, endpoint, request.headers)
        # Whoever proves itself in a way of its own, as nodes do, shares with nobody.
        shares = endpoint.can_block and not isinstance(endpoint.need, PublicAccess) and not caller.is_refused
        key = (target.query_key, build_rights_key(caller, endpoint)) if shares else None
        if shares:
            known = self._board.get(replica, key)
            if known is not None:
                return known  # Somebody with the same rights was let in with the same question.
        require_endpoint_access(caller, endpoint, namespace=options.namespace, path_values=request.path_values)
        asked = request if caller is request.caller else msgspec.structs.replace(request, caller=caller)
        found = self._handlers[endpoint.name](replica, asked, options)
        shown = ReadResult(SharedReply(found, asked, options), found.index, found.watched)
        if shares:
            self._board.put(key, shown)
        return shown

    async def _wait(
        self, request: Request, target: RequestTarget, receive: Receive, connection: HttpConnection | None
    ) -> ReadResult:
        options, world = target.options, self._server.world
        jitter_s = world.random.random() * options.wait_s / 16
        # A caller that hangs up must not be waited for, or those who come again and again would pile up.
        hangup = DisconnectWatcher(world, receive, connection)
        try:
            return await self._server.reader.read_blocking(
                lambda replica: self._look(replica, request, target),
                index=options.index,
                wait_s=options.wait_s + jitter_s,
                on_disconnect=hangup.start,
                is_caught_up=not options.is_stale_allowed,
            )
        finally:
            hangup.stop()

    # -- bodies ------------------------------------------------------------------------------------------------------

    async def _answered(self, shared: SharedReply, *, pretty: bool) -> EncodedRead:
        answered = shared.answered.get(pretty)
        if answered is not None:
            return answered
        found = shared.found
        if isinstance(found, Listing):
            # The first who asks makes it, in a task of its own: should that caller leave, the others still get it.
            making = shared.making.get(pretty)
            if making is None:
                options, tests = shared.options, self._tests(found, shared)
                kept = _kept_whole(found, options, tests, pretty=pretty)
                roll = None if kept is None else self._rolls.get(kept.name)
                if roll is not None:
                    making = self._server.world.start_task(
                        self._renew(shared, found, roll, roll.take_changes()), name="list"
                    )
                    shared.making[pretty] = making
                    return await asyncio.shield(making)
                page = ListPage(tests, per_page=options.per_page, make_token=found.make_token)
                page.read_from(found, options.next_token, is_reversed=options.is_reversed)
                if page.is_small:
                    return await self._make(shared, found, page, pretty=pretty)
                if kept is not None:
                    filling = self._fill(shared, found, page, kept, CachedList(self._server.replica, kept))
                    making = self._server.world.start_task(filling, name="list")
                else:
                    making = self._server.world.start_task(self._make(shared, found, page, pretty=pretty), name="list")
                making.add_done_callback(lambda _: page.close())
                shared.making[pretty] = making
            return await asyncio.shield(making)
        if isinstance(found.value, BrainQuery):
            thinking = shared.making.get(pretty)
            if thinking is None:
                thinking = self._server.world.start_task(
                    self._think(shared, found, found.value, pretty=pretty), name="think"
                )
                shared.making[pretty] = thinking
            return await asyncio.shield(thinking)
        if isinstance(found.value, Refusal):
            answered = EncodedRead(found.index, refusal=found.value)
        else:
            answered = EncodedRead(found.index, encode_body(found.value, is_pretty=pretty))
        return self._keep(shared, answered, pretty=pretty)

    async def _think(
        self, shared: SharedReply, found: ReadResult, thinking: BrainQuery, *, pretty: bool
    ) -> EncodedRead:
        server = self._server
        try:
            told = await server.leader.call_member(server.identity.member_id, thinking.method, thinking.request)
        finally:
            # Who asks again after a failure, asks anew.
            shared.making.pop(pretty, None)
        return self._keep(shared, EncodedRead(found.index, encode_body(told, is_pretty=pretty)), pretty=pretty)

    def _tests(self, listing: Listing[Any], shared: SharedReply) -> list[RecordTest]:
        request, options = shared.asked, shared.options
        lists = request.endpoint.list_features
        assert lists is not None, f"{request.endpoint.name} gives a listing and declares none"
        tests: list[RecordTest] = [] if listing.is_selected is None else [listing.is_selected]
        if options.filter and lists.can_filter:
            tests.append(_compiled(options.filter, self._subject(request.endpoint)))
        is_everywhere = options.namespace == ALL_NAMESPACES
        if listing.get_namespace is not None and is_everywhere and not request.caller.rights.is_management:
            tests.append(_may_read(request, listing.get_namespace))
        if listing.is_visible is not None:
            tests.append(listing.is_visible)
        return tests

    async def _make(self, shared: SharedReply, listing: Listing[Any], page: ListPage, *, pretty: bool) -> EncodedRead:
        key = stands_for = None
        if listing.cache_name and not page.is_small:
            key = (build_query_key(shared.asked), build_rights_key(shared.asked.caller, shared.asked.endpoint), pretty)
            stands_for = (self._server.replica.epoch, listing.index)
            known = self._bodies.get(key, stands_for)
            if known is not None:
                return self._keep(shared, EncodedRead(listing.index, known[0], next_token=known[1]), pretty=pretty)
        await page.finish()
        records, next_token = page.records, page.next_token
        if listing.build_reply is not None:
            body = encode_body(listing.build_reply(records), is_pretty=pretty)
        else:
            body = await encode_list(records, self._forms_of(listing), is_pretty=pretty)
        if key is not None:
            self._bodies.put(key, stands_for, body, next_token)
        return self._keep(shared, EncodedRead(listing.index, body, next_token=next_token), pretty=pretty)

    async def _fill(
        self, shared: SharedReply, listing: Listing[Any], page: ListPage, kept: ListCacheSpec, roll: CachedList
    ) -> EncodedRead:
        """A whole list, which is kept for the next who asks for it."""
        try:
            await page.finish()
            body = await roll.fill(page.records, self._forms_of(listing, keeps=False))
        except BaseException:
            roll.close()
            raise
        self._rolls.put(kept.name, roll)
        return self._keep(shared, EncodedRead(listing.index, body), pretty=False)

    async def _renew(
        self, shared: SharedReply, listing: Listing[Any], roll: CachedList, changes: ListChanges
    ) -> EncodedRead:
        """The same, of which only what changed is made anew."""
        body = await roll.refresh(changes, self._forms_of(listing, keeps=False))
        return self._keep(shared, EncodedRead(listing.index, body), pretty=False)

    def _keep(self, shared: SharedReply, answered: EncodedRead, *, pretty: bool) -> EncodedRead:
        shared.answered[pretty] = answered
        if answered.body is not None:
            self._board.add_bytes(answered.body.size)
        return answered

    def _forms_of(self, listing: Listing[Any], *, keeps: bool = True) -> EncodeRecords:
        """`keeps`: for whoever asks for them again; a roll keeps its own."""
        form, forms, shown, rests_on = listing.cache_name, self._forms, listing.build_view, listing.get_dependency
        if not form:
            return lambda records: [encode_json(shown(record)) for record in records]

        def forms_of(records: Sequence[Any]) -> list[bytes]:
            rest_on = [None] * len(records) if rests_on is None else list(map(rests_on, records))
            return [
                made(record, rest) if data is None else data
                for data, record, rest in zip(forms.get_all(form, records, rest_on), records, rest_on, strict=True)
            ]

        def made(record: Any, rest: object) -> bytes:
            data = encode_json(shown(record))
            if keeps:
                forms.put(form, record, rest, data)
            return data

        return forms_of


def _kept_whole(
    listing: Listing[Any], options: QueryOptions, tests: Sequence[RecordTest], *, pretty: bool
) -> ListCacheSpec | None:  # fmt: skip
    """How the list may be kept, where the whole of it is asked for."""
    if pretty or options.per_page or options.next_token or options.is_reversed:
        return None
    chooses = [] if listing.is_selected is None else [listing.is_selected]
    return listing.cache_spec if list(tests) == chooses else None


def _compiled(text: str, subject: FilterSubject) -> RecordTest:
    try:
        return compile_filter(text, subject).accepts
    except FilterTypeError as error:
        raise invalid_request(f"failed to read result page: {error.text}") from error
    except FilterError as error:
        raise invalid_request(
            f"failed to create result paginator: failed to read filter expression: {error.text}"
        ) from error


def _may_read(request: Request, namespace_of: Callable[[Any], str]) -> RecordTest:
    """Whether the caller has the endpoint's need where a record lies; found out once for each namespace."""
    known: dict[str, bool] = {}

    def may_read(record: Any) -> bool:
        namespace = namespace_of(record)
        may = known.get(namespace)
        if may is None:
            may = known[namespace] = request.has_permission(namespace=namespace)
        return may

    return may_read


def build_query_key(request: Request) -> Hashable:
    """What is asked, without how to answer: the same for all who ask the same."""
    asked = tuple(sorted(pair for pair in request.query.items() if pair[0] not in REPLY_PARAMETERS))
    several = tuple(value for value in request.parameters.values() if isinstance(value, tuple))
    return request.endpoint.name, tuple(request.path_values.values()), asked, several, request.body


def build_rights_key(caller: Caller, endpoint: Endpoint) -> Hashable:
    """What the answer depends on of who asks: their rights, and who they are where it is about themselves."""
    if isinstance(endpoint.need, AnyToken | VariablePermission):
        return caller.rights, caller.kind, caller.accessor_id, caller.claims
    return caller.rights
