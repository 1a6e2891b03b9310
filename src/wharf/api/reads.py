"""How every read is answered: its parameters, the barrier, the rights of the moment, waiting, and the page of a list.

Handlers only read; what is the same for all reads is done here, once. Those who ask the same with the same rights share
one evaluation and one encoded body.
"""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import msgspec

from wharf.access import Caller
from wharf.api.answers import Thinking
from wharf.api.bodies import Receive
from wharf.api.connection import Connection
from wharf.api.encoding import Bodies, Body, Forms, FormsOf, body_of, encode, encode_list
from wharf.api.gate import Gate, check
from wharf.api.handlers import JOINS, reads_of
from wharf.api.hangup import Hangup
from wharf.api.listing import EVERY_NAMESPACE, Kept, Listing
from wharf.api.paging import Accepts, Page
from wharf.api.parameters import ReadOptions, read_options
from wharf.api.request import Request
from wharf.api.rolls import Changes, Roll, Rolls
from wharf.api.targets import Target
from wharf.filters import DoesNotFit, FilterError, Subject, compile_filter
from wharf.model.need import AnyToken, Nothing, OnVariable
from wharf.model.refusal import Refusal, invalid
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.wire.endpoints import Endpoint

NOT_THE_QUESTION: Final = frozenset(("index", "wait", "stale", "region", "pretty"))
"""Parameters that say how to answer; the rest say what is asked."""
SHARED_MAX: Final = 10_000
BOARD_MAX_BYTES: Final = 32 * 1024 * 1024


class Answered(msgspec.Struct, frozen=True):
    """The encoded body, or why there is none (`refusal`: what is not there), with the index that it stands for."""

    index: int
    body: Body | None = None
    refusal: Refusal | None = None
    next_token: str = ""


class Shared:
    """What one evaluation found, and the bodies made of it."""

    __slots__ = ("answered", "asked", "found", "making", "options")

    def __init__(self, found: Found | Listing[Any], asked: Request, options: ReadOptions) -> None:
        self.found = found
        self.asked = asked
        self.options = options
        self.answered: dict[bool, Answered] = {}  # By whether it is pretty.
        self.making: dict[bool, asyncio.Task[Answered]] = {}


class Board:
    """What was found at one index of the replica, for all who ask the same at that index."""

    def __init__(self) -> None:
        self._at: tuple[int, int] = (-1, -1)
        self._kept: dict[Hashable, Found] = {}
        self._bytes = 0

    def weigh(self, size: int) -> None:
        """Bodies were made of what is kept. When they are too many, all begins anew; who waits has theirs."""
        self._bytes += size
        if self._bytes > BOARD_MAX_BYTES:
            self._bytes = 0
            self._kept = {}

    def get(self, replica: Replica, key: Hashable) -> Found | None:
        at = (replica.epoch, replica.index)
        if at != self._at:
            self._at = at
            self._bytes = 0
            self._kept = {}
        return self._kept.get(key)

    def keep(self, key: Hashable, found: Found) -> None:
        if len(self._kept) < SHARED_MAX:
            self._kept[key] = found


class Reads:
    def __init__(self, server: Server, gate: Gate) -> None:
        self._server = server
        self._gate = gate
        self._handlers = reads_of(server)
        self._board = Board()
        self._bodies = Bodies()
        self._forms = Forms()
        self._rolls = Rolls()
        self._subjects: dict[str, Subject] = {}

    def _subject(self, endpoint: Endpoint) -> Subject:
        """What the endpoint's filters are compiled against; made when somebody filters."""
        subject = self._subjects.get(endpoint.name)
        if subject is None:
            assert endpoint.lists is not None, f"{endpoint.name} lists nothing"
            joins = JOINS.get(endpoint.lists.record, {})
            reads = {name: join(self._server.replica) for name, join in joins.items()}
            subject = self._subjects[endpoint.name] = endpoint.lists.subject(reads)
        return subject

    async def answer(
        self, request: Request, target: Target, receive: Receive, connection: Connection | None
    ) -> Answered:
        if not target.options.stale:
            await self._server.reader.catch_up()
        if target.options.index > 0 and target.endpoint.blocks:
            found = await self._wait(request, target, receive, connection)
        else:
            found = self._look(self._server.replica, request, target)
        shared = found.value
        assert isinstance(shared, Shared), "reads find what is shared"
        return shared.answered.get(target.is_pretty) or await self._answered(shared, pretty=target.is_pretty)

    def options_of(self, request: Request) -> ReadOptions:
        """The parameters of all reads; what is wrong with them, the filter too, is told before anything is read."""
        options = read_options(request.query)
        lists = request.endpoint.lists
        if lists is None:
            return options
        if options.filter and lists.filters:
            _compiled(options.filter, self._subject(request.endpoint))
            if any(request.query.get(name) for name in lists.filtering):
                raise invalid("Filter expression cannot be used with other filter parameters")
        if options.reverse and not lists.reverses:
            options = msgspec.structs.replace(options, reverse=False)
        if not lists.pages:
            options = msgspec.structs.replace(options, per_page=0, next_token="")
        return options

    # -- finding -----------------------------------------------------------------------------------------------------

    def _look(self, replica: Replica, request: Request, target: Target) -> Found:
        """Who asks is looked at each time: rights may have gone while the request waited."""
        endpoint, options = target.endpoint, target.options
        caller = self._gate.caller(replica, endpoint, request.headers)
        # Whoever proves itself in a way of its own, as nodes do, shares with nobody.
        shares = endpoint.blocks and not isinstance(endpoint.need, Nothing) and not caller.is_refused
        key = (target.question, scope_of(caller, endpoint)) if shares else None
        if shares:
            known = self._board.get(replica, key)
            if known is not None:
                return known  # Somebody with the same rights was let in with the same question.
        check(caller, endpoint, namespace=options.namespace, path_values=request.path_values)
        asked = request if caller is request.caller else msgspec.structs.replace(request, caller=caller)
        found = self._handlers[endpoint.name](replica, asked, options)
        shown = Found(Shared(found, asked, options), found.index, found.watched)
        if shares:
            self._board.keep(key, shown)
        return shown

    async def _wait(self, request: Request, target: Target, receive: Receive, connection: Connection | None) -> Found:
        options, world = target.options, self._server.world
        jitter_s = world.random.random() * options.wait_s / 16
        # A caller that hangs up must not be waited for, or those who come again and again would pile up.
        hangup = Hangup(world, receive, connection)
        try:
            return await self._server.reader.blocking(
                lambda replica: self._look(replica, request, target),
                index=options.index,
                wait_s=options.wait_s + jitter_s,
                on_gone=hangup.tell,
                is_caught_up=not options.stale,
            )
        finally:
            hangup.end()

    # -- bodies ------------------------------------------------------------------------------------------------------

    async def _answered(self, shared: Shared, *, pretty: bool) -> Answered:
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
                    making = self._server.world.start(self._renew(shared, found, roll, roll.changes()), name="list")
                    shared.making[pretty] = making
                    return await asyncio.shield(making)
                page = Page(tests, per_page=options.per_page, token_of=found.token_of)
                page.take_from(found, options.next_token, reverse=options.reverse)
                if page.is_short:
                    return await self._make(shared, found, page, pretty=pretty)
                if kept is not None:
                    filling = self._fill(shared, found, page, kept, Roll(self._server.replica, kept))
                    making = self._server.world.start(filling, name="list")
                else:
                    making = self._server.world.start(self._make(shared, found, page, pretty=pretty), name="list")
                making.add_done_callback(lambda _: page.end())
                shared.making[pretty] = making
            return await asyncio.shield(making)
        if isinstance(found.value, Thinking):
            thinking = shared.making.get(pretty)
            if thinking is None:
                thinking = self._server.world.start(
                    self._think(shared, found, found.value, pretty=pretty), name="think"
                )
                shared.making[pretty] = thinking
            return await asyncio.shield(thinking)
        if isinstance(found.value, Refusal):
            answered = Answered(found.index, refusal=found.value)
        else:
            answered = Answered(found.index, body_of(found.value, pretty=pretty))
        return self._keep(shared, answered, pretty=pretty)

    async def _think(self, shared: Shared, found: Found, thinking: Thinking, *, pretty: bool) -> Answered:
        server = self._server
        try:
            told = await server.leader.ask_member(server.identity.member_id, thinking.subject, thinking.question)
        finally:
            # Who asks again after a failure, asks anew.
            shared.making.pop(pretty, None)
        return self._keep(shared, Answered(found.index, body_of(told, pretty=pretty)), pretty=pretty)

    def _tests(self, listing: Listing[Any], shared: Shared) -> list[Accepts]:
        request, options = shared.asked, shared.options
        lists = request.endpoint.lists
        assert lists is not None, f"{request.endpoint.name} gives a listing and declares none"
        tests: list[Accepts] = [] if listing.chooses is None else [listing.chooses]
        if options.filter and lists.filters:
            tests.append(_compiled(options.filter, self._subject(request.endpoint)))
        is_everywhere = options.namespace == EVERY_NAMESPACE
        if listing.namespace_of is not None and is_everywhere and not request.caller.rights.is_management:
            tests.append(_may_read(request, listing.namespace_of))
        if listing.may_see is not None:
            tests.append(listing.may_see)
        return tests

    async def _make(self, shared: Shared, listing: Listing[Any], page: Page, *, pretty: bool) -> Answered:
        key = stands_for = None
        if listing.form and not page.is_short:
            key = (question_of(shared.asked), scope_of(shared.asked.caller, shared.asked.endpoint), pretty)
            stands_for = (self._server.replica.epoch, listing.index)
            known = self._bodies.get(key, stands_for)
            if known is not None:
                return self._keep(shared, Answered(listing.index, known[0], next_token=known[1]), pretty=pretty)
        await page.finish()
        records, next_token = page.records, page.next_token
        if listing.told is not None:
            body = body_of(listing.told(records), pretty=pretty)
        else:
            body = await encode_list(records, self._forms_of(listing), pretty=pretty)
        if key is not None:
            self._bodies.keep(key, stands_for, body, next_token)
        return self._keep(shared, Answered(listing.index, body, next_token=next_token), pretty=pretty)

    async def _fill(self, shared: Shared, listing: Listing[Any], page: Page, kept: Kept, roll: Roll) -> Answered:
        """A whole list, which is kept for the next who asks for it."""
        try:
            await page.finish()
            body = await roll.fill(page.records, self._forms_of(listing, keeps=False))
        except BaseException:
            roll.end()
            raise
        self._rolls.keep(kept.name, roll)
        return self._keep(shared, Answered(listing.index, body), pretty=False)

    async def _renew(self, shared: Shared, listing: Listing[Any], roll: Roll, changes: Changes) -> Answered:
        """The same, of which only what changed is made anew."""
        body = await roll.renewed(changes, self._forms_of(listing, keeps=False))
        return self._keep(shared, Answered(listing.index, body), pretty=False)

    def _keep(self, shared: Shared, answered: Answered, *, pretty: bool) -> Answered:
        shared.answered[pretty] = answered
        if answered.body is not None:
            self._board.weigh(answered.body.size)
        return answered

    def _forms_of(self, listing: Listing[Any], *, keeps: bool = True) -> FormsOf:
        """`keeps`: for whoever asks for them again; a roll keeps its own."""
        form, forms, shown, rests_on = listing.form, self._forms, listing.shown, listing.rests_on
        if not form:
            return lambda records: [encode(shown(record)) for record in records]

        def forms_of(records: Sequence[Any]) -> list[bytes]:
            rest_on = [None] * len(records) if rests_on is None else list(map(rests_on, records))
            return [
                made(record, rest) if data is None else data
                for data, record, rest in zip(forms.get_all(form, records, rest_on), records, rest_on, strict=True)
            ]

        def made(record: Any, rest: object) -> bytes:
            data = encode(shown(record))
            if keeps:
                forms.keep(form, record, rest, data)
            return data

        return forms_of


def _kept_whole(
    listing: Listing[Any], options: ReadOptions, tests: Sequence[Accepts], *, pretty: bool
) -> Kept | None:  # fmt: skip
    """How the list may be kept, where the whole of it is asked for."""
    if pretty or options.per_page or options.next_token or options.reverse:
        return None
    chooses = [] if listing.chooses is None else [listing.chooses]
    return listing.kept if list(tests) == chooses else None


def _compiled(text: str, subject: Subject) -> Accepts:
    try:
        return compile_filter(text, subject).accepts
    except DoesNotFit as error:
        raise invalid(f"failed to read result page: {error.text}") from error
    except FilterError as error:
        raise invalid(f"failed to create result paginator: failed to read filter expression: {error.text}") from error


def _may_read(request: Request, namespace_of: Callable[[Any], str]) -> Accepts:
    """Whether the caller has the endpoint's need where a record lies; found out once for each namespace."""
    known: dict[str, bool] = {}

    def may_read(record: Any) -> bool:
        namespace = namespace_of(record)
        may = known.get(namespace)
        if may is None:
            may = known[namespace] = request.may(namespace=namespace)
        return may

    return may_read


def question_of(request: Request) -> Hashable:
    """What is asked, without how to answer: the same for all who ask the same."""
    asked = tuple(sorted(pair for pair in request.query.items() if pair[0] not in NOT_THE_QUESTION))
    several = tuple(value for value in request.parameters.values() if isinstance(value, tuple))
    return request.endpoint.name, tuple(request.path_values.values()), asked, several, request.body


def scope_of(caller: Caller, endpoint: Endpoint) -> Hashable:
    """What the answer depends on of who asks: their rights, and who they are where it is about themselves."""
    if isinstance(endpoint.need, AnyToken | OnVariable):
        return caller.rights, caller.kind, caller.accessor_id, caller.claims
    return caller.rights
