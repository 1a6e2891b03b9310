"""The page of the last changes in the cluster."""

from typing import Final

from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.pages.lists import find_sign_in
from wharf.web.pages.people import find_names
from wharf.web.views.activity import TOPIC_BY_CHOICE, build_activity_view

LIVE_TOPICS: Final = ("Job", "Node", "Deployment", "Evaluation", "Allocation", "Service", "Variable", "HostVolume")


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
    return Page(
        "activity.html",
        "Activity",
        view,
        section="activity",
        topics=(topic,) if topic in LIVE_TOPICS else LIVE_TOPICS if not topic else (),
        api_path="/v1/event/recent?namespace=*",
    )


ROUTES: Final = (Route("activity", show_activity, is_shared=True),)
