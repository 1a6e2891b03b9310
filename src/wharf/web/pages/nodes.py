"""The pages of nodes."""

import asyncio
from typing import Final

from wharf.contract.client.errors import InvalidRequest, NotFound
from wharf.contract.model.refusal import RefusalCode
from wharf.contract.model.times import SECOND
from wharf.contract.wire.nodes.messages import DrainSpec
from wharf.contract.wire.nodes.use import NodeOrder
from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.pages.confirmation import ask_first, is_confirmed
from wharf.web.pages.figures import fetch_figures
from wharf.web.pages.lists import build_list_command, build_list_path, fetch_list
from wharf.web.pages.people import find_names
from wharf.web.rendering import MIN_SHORT_ID, UUID, build_link, quote_for_filter
from wharf.web.views.charts import HISTORY
from wharf.web.views.fleet import build_fleet_view, read_grouping
from wharf.web.views.nodes import (
    DEADLINE_TEXTS,
    DRAIN_DEADLINES_S,
    MAX_ALLOCATIONS,
    build_node_page,
    build_node_row,
    read_node_order,
)

SEARCHED: Final = ("Name", "ID")
"""The fields in which a filter without an operator is searched."""


async def list_nodes(request: PageRequest) -> Page | Redirect:
    """Show one page of the nodes."""
    order = read_node_order(request.query.get("sort", ""))
    view = await fetch_list(
        request,
        ("nodes",),
        request.client.nodes.list,
        build_node_row,
        searched=SEARCHED,
        resources=True,
        use=True,
        sort=order,
    )
    if isinstance(view, Redirect):
        return view
    is_by_use = order is NodeOrder.USE
    return Page(
        "nodes.html",
        "Nodes",
        view,
        section="nodes",
        topics=("Node", "Allocation" if is_by_use else "Allocation:*rows"),
        refresh_pause_s=FLEET_PAUSE_S if is_by_use else 0,
        command=build_list_command("wharf node status", request, SEARCHED),
        api_path=build_list_path("/v1/nodes", request, SEARCHED, use="true", sort=order),
    )


async def show_fleet(request: PageRequest) -> Page | Redirect:
    """Show the whole fleet as a picture, colored by the state, the job or the namespace of allocations, or by use."""
    grouping = read_grouping(request.query.get("by", ""))
    by = "state" if grouping == "use" else grouping
    fleet = (await request.client.nodes.fleet(by=by)).value
    return Page(
        "fleet.html",
        "Fleet",
        build_fleet_view(fleet, grouping),
        section="fleet",
        topics=("Node", "Allocation"),
        refresh_pause_s=FLEET_PAUSE_S,
        command="wharf node status",
        api_path=f"/v1/fleet?by={by}",
    )


async def show_node(request: PageRequest) -> Page | Redirect:
    """Show how full a node is, what runs on it, and what happened to it."""
    node_id = request.path_values["node"]
    nodes = request.client.nodes
    if not UUID.fullmatch(node_id):
        return await _find_node(request, node_id)
    node = (await nodes.read(node_id)).value
    use, figures = await asyncio.gather(
        nodes.use(node_id, limit=MAX_ALLOCATIONS), fetch_figures(nodes.stats(node_id, history=HISTORY))
    )
    names = await find_names(request, (node.last_drain.accessor_id,) if node.last_drain else ())
    view = build_node_page(node, use.value, figures, request.now_ns, names)
    return Page(
        "node.html",
        node.name,
        view,
        section="nodes",
        topics=(f"Node:{node_id}", f"Allocation:{node_id}"),
        command=f"wharf node status {node_id[:8]}",
        api_path=f"/v1/node/{node_id}",
    )


async def _find_node(request: PageRequest, name: str) -> Redirect:
    """Return the way to the node with this name, or whose ID begins with it; to a list if there are several."""
    nodes = request.client.nodes
    named = f"Name == {quote_for_filter(name)}"
    replies = [nodes.list(filter=named, per_page=2)]
    if MIN_SHORT_ID.fullmatch(name.lower()):
        replies.append(nodes.list(prefix=name.lower(), per_page=2))
    found = [node for reply in await asyncio.gather(*replies) for node in reply.value]
    if not found:
        raise NotFound(RefusalCode.NOT_FOUND, f'no node has the name "{name[:100]}", or an ID that begins with it', 404)
    return Redirect(build_link("nodes", found[0].id) if len(found) == 1 else build_link("nodes", filter=named))


async def set_eligibility(request: PageRequest) -> Page | Redirect:
    """Let a node take new work, or not."""
    node_id, is_eligible = request.path_values["node"], request.form.get("eligible") == "yes"
    await request.client.nodes.set_eligibility(node_id, eligible=is_eligible)
    notice = (
        "The node takes new allocations."
        if is_eligible
        else "The node takes no new allocations. What runs on it continues."
    )
    return Redirect(build_link("nodes", node_id), notice)


FLEET_PAUSE_S: Final = 10
"""The shortest time between two updates of a fleet: 100,000 allocations take a quarter of a second of the server."""


async def drain_node(request: PageRequest) -> Page | Redirect:
    """Drain a node within the time of the form, or cancel its drain."""
    node_id, form = request.path_values["node"], request.form
    if form.get("cancel") == "yes":
        await request.client.nodes.drain(node_id, None, mark_eligible=form.get("eligible") == "yes")
        return Redirect(build_link("nodes", node_id), "The drain is canceled.")
    deadline = form.get("deadline", "")
    if deadline not in DRAIN_DEADLINES_S:
        raise InvalidRequest(
            RefusalCode.INVALID, f"the deadline is one of {', '.join(DRAIN_DEADLINES_S)}, not {deadline[:40]}", 400
        )
    if not is_confirmed(request):
        name = (await request.client.nodes.read(node_id)).value.name
        text = f"Its allocations move to other nodes. {DEADLINE_TEXTS[deadline]}"
        url = build_link("nodes", node_id)
        return ask_first(request, f"Drain {name}?", text, button=f"Drain {name}", cancel_url=url)
    spec = DrainSpec(
        deadline=DRAIN_DEADLINES_S[deadline] * SECOND, ignore_system_jobs=form.get("ignore_system_jobs") == "yes"
    )
    note = form.get("note", "").strip()[:MAX_NOTE_CHARS]
    await request.client.nodes.drain(node_id, spec, meta={"note": note} if note else None)
    return Redirect(build_link("nodes", node_id), "The node is being drained. Its allocations move to other nodes.")


MAX_NOTE_CHARS: Final = 500
ROUTES: Final = (
    Route("fleet", show_fleet, is_shared=True),
    Route("nodes", list_nodes, is_shared=True),
    Route("nodes/{node}", show_node, is_shared=True),
    Route("nodes/{node}/eligibility", set_eligibility, method="POST"),
    Route("nodes/{node}/drain", drain_node, method="POST"),
)
