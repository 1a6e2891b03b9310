"""The page of the queue: which jobs wait for capacity."""

from typing import Final

from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.views.queue import PAGE_SIZE, build_queue_view


async def show_queue(request: PageRequest) -> Page | Redirect:
    """Show which jobs wait for capacity, in which order they get it, why they wait, and since when."""
    text = request.query.get("place", "")
    place = int(text) if text.isascii() and text.isdigit() and len(text) < 10 and int(text) else 1
    queue = (
        await request.client.evaluations.queue(place=place, limit=PAGE_SIZE, namespace=request.listed_namespace)
    ).value
    view = build_queue_view(queue, place, request.query.get("namespace", ""), request.now_ns)
    return Page(
        "queue.html",
        "Queue",
        view,
        section="queue",
        topics=("Evaluation",),
        command="wharf eval list --status blocked",
        api_path="/v1/queue?namespace=*",
    )


ROUTES: Final = (Route("queue", show_queue, is_shared=True),)
