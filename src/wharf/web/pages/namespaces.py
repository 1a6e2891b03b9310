"""The pages of namespaces."""

from typing import Final

import msgspec

from wharf.contract.client.errors import InvalidRequest, NotFound
from wharf.contract.model.namespaces import Namespace
from wharf.web.forms import FormRefused, read_number
from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.pages.confirmation import ask_first, is_confirmed
from wharf.web.pages.lists import find_sign_in
from wharf.web.rendering import build_link, quote_segment
from wharf.web.views.field_errors import FormView, build_refused_form
from wharf.web.views.namespaces import (
    FIELD_HINTS,
    NEW_NAMESPACE_FORM,
    NamespaceListView,
    build_namespace_list,
    build_namespace_view,
)


async def list_namespaces(request: PageRequest) -> Page | Redirect:
    """Show the namespaces in which the person has any right."""
    return await _build_list(request, NEW_NAMESPACE_FORM)


async def _build_list(request: PageRequest, form: FormView) -> Page | Redirect:
    prefix = request.query.get("prefix", "")
    namespaces = (await request.client.namespaces.list(prefix=prefix)).value
    if sign_in := find_sign_in(request, has_rows=bool(namespaces)):
        return sign_in
    return Page(
        "namespaces.html",
        "Namespaces",
        NamespaceListView(build_namespace_list(namespaces, prefix), form),
        section="cluster",
        status=400 if form.is_refused else 200,
        command="wharf namespace list",
        api_path="/v1/namespaces",
    )


async def show_namespace(request: PageRequest) -> Page | Redirect:
    """Show a namespace: its quota and weight, and what its jobs may use."""
    return _build_page(await _read_namespace(request), None)


async def _read_namespace(request: PageRequest) -> Namespace:
    return (await request.client.namespaces.read(request.path_values["namespace"])).value


def _build_page(namespace: Namespace, refused: FormView | None) -> Page:
    """Return the page of a namespace, with the form that was refused, if there is one."""
    return Page(
        "namespace.html",
        namespace.name,
        build_namespace_view(namespace, refused),
        section="cluster",
        status=400 if refused is not None else 200,
        command=f"wharf namespace status {namespace.name}",
        api_path=f"/v1/namespace/{quote_segment(namespace.name)}",
    )


async def create_namespace(request: PageRequest) -> Page | Redirect:
    """Create a namespace. One that exists is not replaced. A mistake is shown at its field."""
    form = request.form
    name = form.get("name", "").strip()
    try:
        if name:
            await request.client.namespaces.read(name)
            return await _build_list(request, FormView(form, {"name": f"There is a namespace {name} already."}))
    except NotFound:
        pass
    if refused := await _store(request, Namespace(name=name)):
        return await _build_list(request, refused)
    return Redirect(build_link("namespaces", name), f"The namespace {name} is created.")


async def change_namespace(request: PageRequest) -> Page | Redirect:
    """Change the description, the quota and the weight of a namespace. Its other settings stay."""
    former = await _read_namespace(request)
    if refused := await _store(request, former):
        return _build_page(former, refused)
    return Redirect(build_link("namespaces", former.name), f"The namespace {former.name} is stored.")


async def _store(request: PageRequest, former: Namespace) -> FormView | None:
    """Store a namespace with the settings of the form. Return the form with its mistakes if it is refused."""
    form = request.form
    try:
        changed = msgspec.structs.replace(
            former,
            description=form.get("description", former.description).strip(),
            quota=form.get("quota", former.quota).strip(),
            weight=read_number(form, "weight", former.weight),
        )
        await request.client.namespaces.store(changed)
    except FormRefused as refusal:
        return build_refused_form(form, str(refusal), FIELD_HINTS)
    except InvalidRequest as refusal:
        return build_refused_form(form, refusal.text, FIELD_HINTS)
    return None


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
    Route("namespaces", create_namespace, method="POST"),
    Route("namespaces/{namespace}", show_namespace),
    Route("namespaces/{namespace}", change_namespace, method="POST"),
    Route("namespaces/{namespace}/delete", delete_namespace, method="POST"),
)
