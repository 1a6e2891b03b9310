"""The pages of node pools."""

from collections.abc import Mapping
from typing import Final

import msgspec

from wharf.contract.client.errors import InvalidRequest, NotFound
from wharf.contract.model.node_pools import NodePool, NodePoolSchedulerConfiguration
from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.pages.confirmation import ask_first, is_confirmed
from wharf.web.pages.lists import build_list_command, build_list_path, fetch_list, find_sign_in
from wharf.web.rendering import build_link, quote_segment
from wharf.web.views.field_errors import FormView, build_refused_form
from wharf.web.views.pools import (
    FIELD_HINTS,
    IS_ALLOWED,
    NEW_POOL_FORM,
    PoolListView,
    build_pool_row,
    build_pool_view,
)


async def list_pools(request: PageRequest) -> Page | Redirect:
    """Show one page of the node pools."""
    return await _build_list(request, NEW_POOL_FORM)


async def _build_list(request: PageRequest, form: FormView) -> Page | Redirect:
    found = await fetch_list(request, ("pools",), request.client.node_pools.list, build_pool_row)
    if isinstance(found, Redirect):
        return found
    if sign_in := find_sign_in(request, has_rows=bool(found.rows)):
        return sign_in
    return Page(
        "pools.html",
        "Node pools",
        PoolListView(found, form),
        section="cluster",
        has_rights_anywhere=True,
        status=400 if form.is_refused else 200,
        command=build_list_command("wharf node pool list", request),
        api_path=build_list_path("/v1/node/pools", request),
    )


async def show_pool(request: PageRequest) -> Page | Redirect:
    """Show the settings of a node pool."""
    return _build_page(await _read_pool(request), None)


async def _read_pool(request: PageRequest) -> NodePool:
    return (await request.client.node_pools.read(request.path_values["pool"])).value


def _build_page(pool: NodePool, refused: FormView | None) -> Page:
    """Return the page of a node pool, with the form that was refused, if there is one."""
    return Page(
        "pool.html",
        pool.name,
        build_pool_view(pool, refused),
        section="cluster",
        rights_path=pool.name,
        status=400 if refused is not None else 200,
        command=f"wharf node pool info {pool.name}",
        api_path=f"/v1/node/pool/{quote_segment(pool.name)}",
    )


async def create_pool(request: PageRequest) -> Page | Redirect:
    """Create a node pool. One that exists is not replaced."""
    form = request.form
    name = form.get("name", "").strip()
    try:
        if name:
            await request.client.node_pools.read(name)
            return await _build_list(request, FormView(form, {"name": f"There is a node pool {name} already."}))
    except NotFound:
        pass
    try:
        await request.client.node_pools.store(_change_pool(NodePool(name=name), form))
    except InvalidRequest as refusal:
        return await _build_list(request, build_refused_form(form, refusal.text, FIELD_HINTS))
    return Redirect(build_link("pools", name), f"The node pool {name} is created.")


async def change_pool(request: PageRequest) -> Page | Redirect:
    """Change the description and the scheduler settings of a node pool. Its other settings stay."""
    former = await _read_pool(request)
    try:
        await request.client.node_pools.store(_change_pool(former, request.form))
    except InvalidRequest as refusal:
        return _build_page(former, build_refused_form(request.form, refusal.text, FIELD_HINTS))
    return Redirect(build_link("pools", former.name), f"The node pool {former.name} is stored.")


def _change_pool(former: NodePool, form: Mapping[str, str]) -> NodePool:
    """Return a node pool with the settings of a form."""
    algorithm = form.get("algorithm", "").strip()
    oversubscription = IS_ALLOWED.get(form.get("oversubscription", ""))
    settings = NodePoolSchedulerConfiguration(
        scheduler_algorithm=algorithm, memory_oversubscription_enabled=oversubscription
    )
    return msgspec.structs.replace(
        former,
        description=form.get("description", former.description).strip(),
        scheduler_configuration=settings if algorithm or oversubscription is not None else None,
    )


async def delete_pool(request: PageRequest) -> Page | Redirect:
    """Delete a node pool, which no node and no job may use."""
    name = request.path_values["pool"]
    if not is_confirmed(request):
        url = build_link("pools", name)
        text = (
            "Its name can be used again. A node pool with nodes, or with jobs that have not ended, cannot be deleted."
        )
        return ask_first(request, f"Delete the node pool {name}?", text, button="Delete", cancel_url=url)
    await request.client.node_pools.delete(name)
    return Redirect(build_link("pools"), f"The node pool {name} is deleted.")


ROUTES: Final = (
    Route("pools", list_pools),
    Route("pools", create_pool, method="POST"),
    Route("pools/{pool}", show_pool),
    Route("pools/{pool}", change_pool, method="POST"),
    Route("pools/{pool}/delete", delete_pool, method="POST"),
)
