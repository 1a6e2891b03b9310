"""The pages of the last changes in the cluster, and of the audit log: who did what."""

import asyncio
import shlex
from typing import Final
from urllib.parse import urlencode

from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.pages.lists import find_sign_in
from wharf.web.pages.people import find_names
from wharf.web.views.activity import TOPIC_BY_CHOICE, build_activity_view
from wharf.web.views.audit import build_audit_view

LIVE_TOPICS: Final = ("Job", "Node", "Deployment", "Evaluation", "Allocation", "Service", "Variable", "HostVolume")
AUDIT_PAGE_SIZE: Final = 100
MAX_SEARCH_CHARS: Final = 200
"""What the API searches at most. The rest of a longer text is left out."""


async def show_activity(request: PageRequest) -> Page | Redirect:
    """Show the last changes that the server has in memory, the newest first."""
    choice = request.query.get("kind", "")
    topic = TOPIC_BY_CHOICE.get(choice, "")
    recent = await request.client.events.recent((topic,) if topic else (), namespace=request.listed_namespace)
    names = await find_names(request, (event.accessor_id for event in recent.events))
    view = build_activity_view(
        recent, choice if topic else "", request.query.get("namespace", ""), request.now_ns, names
    )
    if sign_in := find_sign_in(request, has_rows=bool(view.rows)):
        return sign_in
    path = _build_api_path("/v1/event/recent", namespace=request.listed_namespace, topic=topic)
    return Page(
        "activity.html",
        "Activity",
        view,
        section="activity",
        topics=(topic,) if topic in LIVE_TOPICS else LIVE_TOPICS if not topic else (),
        command=f"wharf operator api {shlex.quote(path)}",
        api_path=path,
    )


async def show_audit_log(request: PageRequest) -> Page | Redirect:
    """Show who did what: the audit log of a server, with a search. It does not change by itself, because people read it."""
    query, server = request.query, request.query.get("server", "")
    search, is_failed = query.get("q", "").strip()[:MAX_SEARCH_CHARS], query.get("failed") == "yes"
    token = query.get("token", "")
    entries, members = await asyncio.gather(
        request.client.operator.audit(
            search=search, failed=is_failed, limit=AUDIT_PAGE_SIZE, next_token=token, server_id=server
        ),
        request.client.agent.members(),
    )
    path = _build_api_path(
        "/v1/operator/audit", search=search, failed="true" if is_failed else "", server_id=server, next_token=token
    )
    return Page(
        "audit.html",
        "Audit log",
        build_audit_view(entries, members, query, server, request.now_ns),
        section="activity",
        command=f"wharf operator api {shlex.quote(path)}",
        api_path=path,
    )


def _build_api_path(path: str, **query: str) -> str:
    """Return a request of the API without the parameters that are empty."""
    filled = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(filled, safe='*')}" if filled else path


ROUTES: Final = (
    Route("activity", show_activity, is_shared=True),
    Route("activity/audit", show_audit_log),
)
