"""Endpoints that find things by a part of their name. A search is driven step by step, and others get their turn between."""

import asyncio
from collections.abc import Generator
from typing import Final, TypeVar

from wharf.cluster.api.requests.parameters import parse_query_options
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, ReadHandler
from wharf.cluster.operations.search import (
    SearchContext,
    SearchLimits,
    check_search_context,
    list_allowed_contexts,
    search_by_prefix,
    search_fuzzy,
)
from wharf.cluster.operations.search.contexts import SEARCH_TARGETS
from wharf.cluster.server.server import Server
from wharf.contract.wire.search import (
    FuzzyMatch,
    FuzzySearchRequest,
    FuzzySearchResponse,
    SearchRequest,
    SearchResponse,
)

T = TypeVar("T")

READ_HANDLERS: Final[dict[str, ReadHandler]] = {}


class SearchActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def search_by_prefix(self, request: Request) -> ActionResult:
        asked = request.decode_body(SearchRequest)
        check_search_context(asked.context)
        namespace = request.query.get("namespace") or asked.namespace or "default"
        await self._begin(request)
        rights = request.caller.rights
        contexts = list_allowed_contexts(asked.context, request.caller, namespace)
        index = self._index(contexts)
        found = await _driven(
            search_by_prefix(
                self._server.replica, contexts, asked.prefix, rights, namespace=namespace, limits=self._limits
            )
        )
        reply = SearchResponse(
            matches=found.matches,
            truncations=found.truncations,
            index=index,
            last_contact=self._server.reader.last_contact_ms() or 0,
            known_leader=self._server.reader.has_leader(),
        )
        return ActionResult(reply, index)

    async def search_fuzzily(self, request: Request) -> ActionResult:
        asked = request.decode_body(FuzzySearchRequest)
        self._limits.check_fuzzy_query(asked.text)
        check_search_context(asked.context)
        namespace = request.query.get("namespace") or asked.namespace or "default"
        await self._begin(request)
        rights = request.caller.rights
        contexts = list_allowed_contexts(asked.context, request.caller, namespace)
        index = self._index(contexts)
        found = await _driven(
            search_fuzzy(self._server.replica, contexts, asked.text, rights, namespace=namespace, limits=self._limits)
        )
        reply = FuzzySearchResponse(
            matches={
                context: tuple(FuzzyMatch(id=each.id, scope=each.scope or None) for each in names)
                for context, names in found.matches.items()
            },
            truncations=found.truncations,
            index=index,
            last_contact=self._server.reader.last_contact_ms() or 0,
            known_leader=self._server.reader.has_leader(),
        )
        return ActionResult(reply, index)

    @property
    def _limits(self) -> SearchLimits:
        return self._server.search_limits

    async def _begin(self, request: Request) -> None:
        """`stale`: what this server knows is new enough."""
        if not parse_query_options(request.query).is_stale_allowed:
            await self._server.reader.catch_up()

    def _index(self, contexts: list[SearchContext]) -> int:
        """What is found stands for this index at least."""
        tables = [table for context in contexts if (table := SEARCH_TARGETS[context].table) is not None]
        return self._server.replica.get_last_change(*tables) if tables else 1


async def _driven(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        await asyncio.sleep(0)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    searches = SearchActions(server)
    return {"search.prefix": searches.search_by_prefix, "search.fuzzy": searches.search_fuzzily}
