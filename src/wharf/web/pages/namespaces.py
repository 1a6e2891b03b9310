"""The pages of namespaces."""

from typing import Final

import msgspec

from wharf.contract.client.errors import NotFound
from wharf.contract.model.namespaces import Namespace
from wharf.web.forms import read_number
from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.pages.confirmation import ask_first, is_confirmed
from wharf.web.pages.lists import find_sign_in
from wharf.web.rendering import build_link, quote_segment
from wharf.web.views.namespaces import build_namespace_list, build_namespace_view


async def list_namespaces(request: PageRequest) -> Page | Redirect:
    """Show the namespaces in which the person has any right."""
    prefix = request.query.get("prefix", "")
    namespaces = (await request.client.namespaces.list(prefix=prefix)).value
    if sign_in := find_sign_in(request, has_rows=bool(namespaces)):
        return sign_in
    return Page(
        "namespaces.html",
        "Namespaces",
        build_namespace_list(namespaces, prefix),
        section="cluster",
        command="wharf namespace list",
        api_path="/v1/namespaces",
    )


async def show_namespace(request: PageRequest) -> Page | Redirect:
    """Show a namespace: its quota and weight, and what its jobs may use."""
    name = request.path_values["namespace"]
    namespace = (await request.client.namespaces.read(name)).value
    return Page(
        "namespace.html",
        name,
        build_namespace_view(namespace),
        section="cluster",
        command=f"wharf namespace status {name}",
        api_path=f"/v1/namespace/{quote_segment(name)}",
    )


async def store_namespace(request: PageRequest) -> Page | Redirect:
    """Create a namespace, or change the description, the quota and the weight of one. Its other settings stay."""
    form, name = request.form, request.form.get("name", "").strip()
    try:
        former = (await request.client.namespaces.read(name)).value if name else Namespace(name=name)
    except NotFound:
        former = Namespace(name=name)
    changed = msgspec.structs.replace(
        former,
        description=form.get("description", former.description).strip(),
        quota=form.get("quota", former.quota).strip(),
        weight=read_number(form, "weight", former.weight),
    )
    await request.client.namespaces.store(changed)
    return Redirect(build_link("namespaces", name), "The namespace is stored.")


async def delete_namespace(request: PageRequest) -> Page | Redirect:
    """Delete a namespace, which must be empty."""
    name = request.path_values["namespace"]
    if not is_confirmed(request):
        url = build_link("namespaces", name)
        text = "Its name can be used again. A namespace with jobs or variables cannot be deleted."
        return ask_first(request, f"Delete the namespace {name}?", text, button="Delete", cancel_url=url)
    await request.client.namespaces.delete(name)
    return Redirect(build_link("namespaces"), f"The namespace {name} is deleted.")


ROUTES: Final = (
    Route("namespaces", list_namespaces),
    Route("namespaces", store_namespace, method="POST"),
    Route("namespaces/{namespace}", show_namespace),
    Route("namespaces/{namespace}/delete", delete_namespace, method="POST"),
)
