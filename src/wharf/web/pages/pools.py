"""The pages of node pools."""

from typing import Final

from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.pages.lists import fetch_list, find_sign_in
from wharf.web.rendering import quote_segment
from wharf.web.views.pools import build_pool_row, build_pool_view


async def list_pools(request: PageRequest) -> Page | Redirect:
    """Show one page of the node pools."""
    view = await fetch_list(request, ("pools",), request.client.node_pools.list, build_pool_row)
    if isinstance(view, Redirect):
        return view
    if sign_in := find_sign_in(request, has_rows=bool(view.rows)):
        return sign_in
    return Page(
        "pools.html",
        "Node pools",
        view,
        section="cluster",
        command="wharf node pool list",
        api_path="/v1/node/pools",
    )


async def show_pool(request: PageRequest) -> Page | Redirect:
    """Show the settings of a node pool."""
    name = request.path_values["pool"]
    pool = (await request.client.node_pools.read(name)).value
    return Page(
        "pool.html",
        name,
        build_pool_view(pool),
        section="cluster",
        command=f"wharf node pool info {name}",
        api_path=f"/v1/node/pool/{quote_segment(name)}",
    )


ROUTES: Final = (Route("pools", list_pools), Route("pools/{pool}", show_pool))
