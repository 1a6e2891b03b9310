"""Endpoints that find things by a part of their name. A search is driven step by step, and others get their turn between."""

import asyncio
from collections.abc import Generator
from typing import Final, TypeVar

from wharf.api.answers import Act, Done, Reading
from wharf.api.parameters import read_options
from wharf.api.request import Request
from wharf.operations.search import Context, SearchLimits, check_context, contexts_for, find_by_prefix, find_fuzzily
from wharf.operations.search.contexts import SEARCHED
from wharf.server.server import Server
from wharf.wire.search_shapes import (
    FuzzyMatch,
    FuzzySearchRequest,
    FuzzySearchResponse,
    SearchRequest,
    SearchResponse,
)

T = TypeVar("T")

READS: Final[dict[str, Reading]] = {}


class Searches:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def by_prefix(self, request: Request) -> Done:
        asked = request.read_body(SearchRequest)
        check_context(asked.context)
        namespace = request.query.get("namespace") or asked.namespace or "default"
        await self._begin(request)
        rights = request.caller.rights
        contexts = contexts_for(asked.context, request.caller, namespace)
        index = self._index(contexts)
        found = await _driven(
            find_by_prefix(
                self._server.replica, contexts, asked.prefix, rights, namespace=namespace, limits=self._limits
            )
        )
        reply = SearchResponse(
            matches=found.matches,
            truncations=found.truncations,
            index=index,
            last_contact=self._server.reader.last_contact_ms() or 0,
            known_leader=self._server.reader.knows_leader(),
        )
        return Done(reply, index)

    async def fuzzy(self, request: Request) -> Done:
        asked = request.read_body(FuzzySearchRequest)
        self._limits.check(asked.text)
        check_context(asked.context)
        namespace = request.query.get("namespace") or asked.namespace or "default"
        await self._begin(request)
        rights = request.caller.rights
        contexts = contexts_for(asked.context, request.caller, namespace)
        index = self._index(contexts)
        found = await _driven(
            find_fuzzily(self._server.replica, contexts, asked.text, rights, namespace=namespace, limits=self._limits)
        )
        reply = FuzzySearchResponse(
            matches={
                context: tuple(FuzzyMatch(id=each.id, scope=each.scope or None) for each in names)
                for context, names in found.matches.items()
            },
            truncations=found.truncations,
            index=index,
            last_contact=self._server.reader.last_contact_ms() or 0,
            known_leader=self._server.reader.knows_leader(),
        )
        return Done(reply, index)

    @property
    def _limits(self) -> SearchLimits:
        return self._server.search_limits

    async def _begin(self, request: Request) -> None:
        """`stale`: what this server knows is new enough."""
        if not read_options(request.query).stale:
            await self._server.reader.catch_up()

    def _index(self, contexts: list[Context]) -> int:
        """What is found stands for this index at least."""
        tables = [table for context in contexts if (table := SEARCHED[context].table) is not None]
        return self._server.replica.last_change(*tables) if tables else 1


async def _driven(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        await asyncio.sleep(0)


def acts_of(server: Server) -> dict[str, Act]:
    searches = Searches(server)
    return {"search.prefix": searches.by_prefix, "search.fuzzy": searches.fuzzy}
