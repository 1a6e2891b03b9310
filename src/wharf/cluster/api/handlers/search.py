"""Endpoints that search objects by a part of their name.

A search runs in slices, so that it does not delay other requests.
"""

from collections.abc import Generator, Hashable
from typing import Final, TypeVar

from wharf.cluster.api.requests.parameters import parse_query_options
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult
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

STEPS_PER_PAUSE: Final = 4
"""Steps of a search after which other tasks run, however fast they were."""


class SearchActions:
    """Searches the replica in the contexts that the caller may read."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def search_by_prefix(self, request: Request) -> ActionResult:
        """Return the ids that begin with a prefix, by context (such as jobs or nodes).

        Contexts that the caller may not read are omitted.
        """
        body = request.decode_body(SearchRequest)
        check_search_context(body.context)
        namespace = request.query.get("namespace") or body.namespace or "default"
        await self._catch_up(request)
        rights = request.caller.rights
        contexts = list_allowed_contexts(body.context, request.caller, namespace)
        index = self._get_index(contexts)
        result = await _run_in_slices(
            self._server,
            request.caller.owner_key,
            search_by_prefix(
                self._server.replica, contexts, body.prefix, rights, namespace=namespace, limits=self._limits
            ),
        )
        reply = SearchResponse(
            matches=result.matches,
            truncations=result.truncations,
            index=index,
            last_contact=self._server.get_leader_contact_ms(),
            known_leader=self._server.reader.has_leader(),
        )
        return ActionResult(reply, index)

    async def search_fuzzily(self, request: Request) -> ActionResult:
        """Return the objects whose names contain a text, by context (such as jobs or nodes).

        Contexts that the caller may not read are omitted.
        """
        body = request.decode_body(FuzzySearchRequest)
        self._limits.check_fuzzy_query(body.text)
        check_search_context(body.context)
        namespace = request.query.get("namespace") or body.namespace or "default"
        await self._catch_up(request)
        rights = request.caller.rights
        contexts = list_allowed_contexts(body.context, request.caller, namespace)
        index = self._get_index(contexts)
        result = await _run_in_slices(
            self._server,
            request.caller.owner_key,
            search_fuzzy(self._server.replica, contexts, body.text, rights, namespace=namespace, limits=self._limits),
        )
        reply = FuzzySearchResponse(
            matches={
                context: tuple(FuzzyMatch(id=each.id, scope=each.scope or None) for each in names)
                for context, names in result.matches.items()
            },
            truncations=result.truncations,
            index=index,
            last_contact=self._server.get_leader_contact_ms(),
            known_leader=self._server.reader.has_leader(),
        )
        return ActionResult(reply, index)

    @property
    def _limits(self) -> SearchLimits:
        return self._server.search_limits

    async def _catch_up(self, request: Request) -> None:
        """Wait until the replica has all acknowledged writes, unless the request allows stale data."""
        if not parse_query_options(request.query).is_stale_allowed:
            await self._server.reader.catch_up()

    def _get_index(self, contexts: list[SearchContext]) -> int:
        """Return the index of the last change of the searched tables."""
        tables = [table for context in contexts if (table := SEARCH_TARGETS[context].table) is not None]
        return self._server.replica.get_last_change(*tables) if tables else 1


async def _run_in_slices(server: Server, owner: Hashable, steps: Generator[None, None, T]) -> T:
    """Run a generator to its end and return its result. Other tasks run between two slices.

    Raises `Refusal` if it takes too long.
    """
    work = server.make_list_work(owner)
    step_count = 0
    work.restart()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        step_count += 1
        if step_count % STEPS_PER_PAUSE == 0 or work.is_slice_over():
            await work.pause()


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = SearchActions(server)
    return {"search.prefix": actions.search_by_prefix, "search.fuzzy": actions.search_fuzzily}
