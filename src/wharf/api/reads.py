"""How every read is answered: its parameters, the barrier, the rights of the moment, waiting, and the page of a list.

Handlers only read; what is the same for all reads is done here, once.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from wharf.api.bodies import Receive, until_gone
from wharf.api.gate import Gate, check
from wharf.api.handlers import JOINS, READS
from wharf.api.listing import EVERY_NAMESPACE, Listing, Page, page_of
from wharf.api.parameters import ReadOptions, read_options
from wharf.api.request import Request
from wharf.filters import DoesNotFit, FilterError, NotReadable, Subject, compile_filter
from wharf.model.refusal import invalid
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.wire.endpoints import ENDPOINTS, Endpoint

Accepts = Callable[[Any], bool]


class Answered(msgspec.Struct, frozen=True):
    """What a read found: a value, or the records of a page as they are shown."""

    value: object
    index: int
    next_token: str = ""


class Reads:
    def __init__(self, server: Server, gate: Gate) -> None:
        self._server = server
        self._gate = gate
        self._subjects = {
            endpoint.name: _subject(endpoint, server.replica)
            for endpoint in ENDPOINTS
            if endpoint.lists is not None and not endpoint.left_out
        }

    async def answer(self, request: Request, receive: Receive) -> Answered:
        options = read_options(request.query)
        accepts = self._filter(request.endpoint, options)
        if not options.stale:
            await self._server.reader.catch_up()
        return await self._find(request, options, accepts, receive)

    async def _find(self, request: Request, options: ReadOptions, accepts: list[Accepts], receive: Receive) -> Answered:
        handler = READS[request.endpoint.name]

        def read(replica: Replica) -> Found:
            """Who asks is looked at each time: rights may have gone while the request waited."""
            caller = self._gate.caller(replica, request.endpoint, request.headers)
            check(caller, request.endpoint, namespace=options.namespace, path_values=request.path_values)
            asked = msgspec.structs.replace(request, caller=caller)
            found = handler(replica, asked, options)
            if isinstance(found, Listing):
                return Found((found, asked), found.index, found.watched)
            return found

        found = await self._now_or_later(read, request, options, receive)
        if not isinstance(found.value, tuple) or not isinstance(found.value[0], Listing):
            return Answered(found.value, found.index)
        listing, asked = found.value
        page = self._page(listing, asked, options, accepts)
        return Answered([listing.shown(record) for record in page.records], found.index, page.next_token)

    async def _now_or_later(
        self, read: Callable[[Replica], Found], request: Request, options: ReadOptions, receive: Receive
    ) -> Found:
        if not options.index or not request.endpoint.blocks:
            return read(self._server.replica)
        jitter_s = self._server.world.random.random() * options.wait_s / 16
        # A caller that hangs up must not be waited for, or those who come again and again would pile up.
        caller = self._server.world.start(until_gone(receive), name="caller")
        try:
            return await self._server.reader.blocking(
                read, index=options.index, wait_s=options.wait_s + jitter_s, caller=caller
            )
        finally:
            caller.cancel()

    def _page(self, listing: Listing[Any], request: Request, options: ReadOptions, accepts: list[Accepts]) -> Page[Any]:
        lists = request.endpoint.lists
        assert lists is not None, f"{request.endpoint.name} gives a listing and declares none"
        if not lists.reverses and options.reverse:
            options = msgspec.structs.replace(options, reverse=False)
        if not lists.pages:
            options = msgspec.structs.replace(options, per_page=0, next_token="")
        tests = list(accepts)
        if listing.namespace_of is not None and options.namespace == EVERY_NAMESPACE:
            tests.append(_may_read(request, listing.namespace_of))
        if listing.may_see is not None:
            tests.append(listing.may_see)
        try:
            return page_of(listing, options, tests)
        except NotReadable as error:
            raise invalid(f"failed to read result page: {error.text}") from error

    def _filter(self, endpoint: Endpoint, options: ReadOptions) -> list[Accepts]:
        if not options.filter or endpoint.lists is None or not endpoint.lists.filters:
            return []
        try:
            return [compile_filter(options.filter, self._subjects[endpoint.name]).accepts]
        except DoesNotFit as error:
            raise invalid(f"failed to read result page: {error.text}") from error
        except FilterError as error:
            raise invalid(
                f"failed to create result paginator: failed to read filter expression: {error.text}"
            ) from error


def _subject(endpoint: Endpoint, replica: Replica) -> Subject:
    assert endpoint.lists is not None, f"{endpoint.name} lists nothing"
    joins = JOINS.get(endpoint.lists.record, {})
    return endpoint.lists.subject({name: join(replica) for name, join in joins.items()})


def _may_read(request: Request, namespace_of: Callable[[Any], str]) -> Accepts:
    """Whether the caller has the endpoint's need where a record lies; found out once for each namespace."""
    if request.caller.rights.is_management:
        return lambda _record: True
    known: dict[str, bool] = {}

    def may_read(record: Any) -> bool:
        namespace = namespace_of(record)
        may = known.get(namespace)
        if may is None:
            may = known[namespace] = request.may(namespace=namespace)
        return may

    return may_read
