"""The search for anything by its ID, a prefix of it, or its name."""

import asyncio
from collections.abc import Sequence
from typing import Final

from wharf.contract.client.errors import InvalidRequest, RequestRefused
from wharf.contract.wire.acl import TokenStub
from wharf.contract.wire.search import FuzzySearchResponse
from wharf.web.page import ALL_NAMESPACES, Page, PageRequest, Redirect, Route
from wharf.web.pages.lists import find_sign_in
from wharf.web.rendering import MIN_SHORT_ID, build_link, quote_for_filter
from wharf.web.views.search import build_search_view, find_exact_hit

MAX_TOKENS: Final = 20
"""How many tokens a search lists."""
MAX_QUERY_CHARS: Final = 200
"""No ID and no name that a search finds is longer. Limits what is compared with each name."""


async def search(request: PageRequest) -> Page | Redirect:
    """Show what has this ID, prefix or name. If exactly one object has this ID or name, its page opens instead."""
    text = request.query.get("q", "").strip()[:MAX_QUERY_CHARS]
    if not text:
        return Page("search.html", "Search", build_search_view("", None, None))
    by_prefix, by_name = await asyncio.gather(
        request.client.search.prefix(text, namespace=ALL_NAMESPACES), _search_names(request, text)
    )
    view = build_search_view(text, by_prefix, by_name, await _search_tokens(request, text))
    if sign_in := find_sign_in(request, has_rows=bool(view.groups)):
        return sign_in
    if hit := find_exact_hit(view):
        return Redirect(hit.url)
    return Page("search.html", f"Search for {text}", view, command=f"wharf status {text}" if text.isalnum() else "")


async def _search_tokens(request: PageRequest, text: str) -> Sequence[TokenStub]:
    """Return the tokens whose name contains the text or whose accessor ID begins with it; none if the person may not see them."""
    if not request.visitor.is_signed_in:
        return ()
    expression = f"Name contains {quote_for_filter(text)}"
    try:
        named = (await request.client.acl.tokens.list(filter=expression, per_page=MAX_TOKENS)).value
        if named or not MIN_SHORT_ID.fullmatch(text.lower()):
            return named
        return (await request.client.acl.tokens.list(prefix=text.lower(), per_page=MAX_TOKENS)).value
    except RequestRefused:
        return ()


async def _search_names(request: PageRequest, text: str) -> FuzzySearchResponse | None:
    """Return the objects whose name contains the text; `None` if it is too short, or if this search is switched off."""
    try:
        return await request.client.search.fuzzy(text, namespace=ALL_NAMESPACES)
    except InvalidRequest:
        return None


async def show_evaluation(request: PageRequest) -> Page | Redirect:
    """Open the page of the job of an evaluation, which explains what became of it."""
    evaluation = (await request.client.evaluations.read(request.path_values["evaluation"])).value
    return Redirect(build_link("jobs", evaluation.job_id, namespace=evaluation.namespace))


async def show_deployment(request: PageRequest) -> Page | Redirect:
    """Open the page of the job of a rollout."""
    deployment = (await request.client.deployments.read(request.path_values["deployment"])).value
    return Redirect(build_link("jobs", deployment.job_id, namespace=deployment.namespace))


ROUTES: Final = (
    Route("search", search),
    Route("evaluations/{evaluation}", show_evaluation),
    Route("deployments/{deployment}", show_deployment),
)
