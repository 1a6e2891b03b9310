"""The pages of allocations."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from wharf.contract.client.errors import NotFound, RequestRefused
from wharf.contract.model.explanations import AllocationExplanation
from wharf.contract.model.refusal import RefusalCode
from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.pages.confirmation import ask_first, is_confirmed
from wharf.web.pages.figures import fetch_figures
from wharf.web.pages.last_lines import read_last_lines
from wharf.web.rendering import MIN_SHORT_ID, UUID, build_link
from wharf.web.views.allocations import build_allocation_page, list_scored_nodes
from wharf.web.views.charts import HISTORY


async def show_allocation(request: PageRequest) -> Page | Redirect:
    """Show what happened to an allocation."""
    alloc_id = request.path_values["allocation"]
    if not UUID.fullmatch(alloc_id) and MIN_SHORT_ID.fullmatch(alloc_id.lower()):
        found = (await request.client.allocations.list(prefix=alloc_id.lower(), namespace="*", per_page=2)).value
        if len(found) == 1 and found[0].id != alloc_id:
            return Redirect(build_link("allocations", found[0].id))
        if not found:
            text = f'no allocation that you may see has an ID that begins with "{alloc_id}"'
            raise NotFound(RefusalCode.NOT_FOUND, text, 404)
    allocation = (await request.client.allocations.read(alloc_id)).value
    explanation, figures, last_lines = await asyncio.gather(
        _explain(request, alloc_id),
        fetch_figures(request.client.allocations.stats(alloc_id, history=HISTORY)),
        read_last_lines(request.client, allocation),
    )
    node_names = await _find_node_names(request, list_scored_nodes(allocation.metrics))
    view = build_allocation_page(allocation, explanation, figures, last_lines, request.now_ns, node_names=node_names)
    return Page(
        "allocation.html",
        allocation.name,
        view,
        section="jobs",
        namespace=allocation.namespace,
        topics=(f"Allocation:{alloc_id}",),
        command=f"wharf alloc status {alloc_id[:8]}",
        api_path=f"/v1/allocation/{alloc_id}",
    )


async def _find_node_names(request: PageRequest, node_ids: Sequence[str]) -> Mapping[str, str]:
    """Return the names of nodes by their IDs, as far as the person may see nodes."""

    async def read(node_id: str) -> str:
        try:
            return (await request.client.nodes.read(node_id)).value.name
        except RequestRefused:
            return ""

    names = await asyncio.gather(*map(read, node_ids))
    return dict(zip(node_ids, names, strict=True))


async def _explain(request: PageRequest, alloc_id: str) -> AllocationExplanation | None:
    try:
        return (await request.client.allocations.explain(alloc_id)).value
    except RequestRefused:
        return None


async def restart_allocation(request: PageRequest) -> Page | Redirect:
    """Restart the tasks of an allocation."""
    alloc_id = request.path_values["allocation"]
    await request.client.allocations.restart(alloc_id)
    return Redirect(build_link("allocations", alloc_id), "Its tasks are being restarted.")


async def signal_allocation(request: PageRequest) -> Page | Redirect:
    """Send a signal to one task of an allocation, or to all that run."""
    alloc_id, task = request.path_values["allocation"], request.form.get("task", "")
    signal = request.form.get("signal", "").strip().upper()
    await request.client.allocations.signal(alloc_id, signal, task=task)
    return Redirect(build_link("allocations", alloc_id), f"{signal} was sent to {task or 'all running tasks'}.")


async def stop_allocation(request: PageRequest) -> Page | Redirect:
    """Stop an allocation; the scheduler replaces it."""
    alloc_id = request.path_values["allocation"]
    if not is_confirmed(request):
        name = (await request.client.allocations.read(alloc_id)).value.name
        text = "Its tasks end, and the scheduler places a replacement."
        url = build_link("allocations", alloc_id)
        return ask_first(request, f"Stop {name}?", text, button="Stop and replace", cancel_url=url)
    await request.client.allocations.stop(alloc_id)
    return Redirect(build_link("allocations", alloc_id), "It is being stopped and replaced.")


ROUTES: Final = (
    Route("allocations/{allocation}", show_allocation, is_shared=True),
    Route("allocations/{allocation}/restart", restart_allocation, method="POST"),
    Route("allocations/{allocation}/signal", signal_allocation, method="POST"),
    Route("allocations/{allocation}/stop", stop_allocation, method="POST"),
)
