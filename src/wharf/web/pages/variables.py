"""The pages of variables. Their values are read only after a click, and the audit log names who did."""

from collections.abc import Mapping
from typing import Final

from wharf.contract.client.errors import Conflict, NotFound
from wharf.contract.model.refusal import RefusalCode
from wharf.contract.wire.variables import VariableView
from wharf.web.forms import FormRefused, read_number
from wharf.web.page import DEFAULT_NAMESPACE, Page, PageRequest, Redirect, Route
from wharf.web.pages.confirmation import ask_first, is_confirmed
from wharf.web.pages.lists import build_list_path, fetch_list, find_sign_in
from wharf.web.rendering import build_link, quote_segment
from wharf.web.views.variables import build_variable_row, build_variable_view


async def list_variables(request: PageRequest) -> Page | Redirect:
    """Show one page of the variables, without their values."""
    view = await fetch_list(
        request,
        ("variables",),
        request.client.variables.list,
        lambda variable: build_variable_row(variable, request.now_ns),
        namespace=request.listed_namespace,
        can_go_back=False,
    )
    if isinstance(view, Redirect):
        return view
    if sign_in := find_sign_in(request, has_rows=bool(view.rows)):
        return sign_in
    return Page(
        "variables.html",
        "Variables",
        view,
        section="cluster",
        topics=("Variable",),
        has_rights_anywhere=True,
        command="wharf var list",
        api_path=build_list_path("/v1/vars", request, has_namespace=True),
    )


async def show_variable(request: PageRequest) -> Page | Redirect:
    """Show a variable without its values."""
    return _build_page(request, await _find_variable(request))


async def show_values(request: PageRequest) -> Page | Redirect:
    """Show a variable with its values. A form requests this page, so that no link and no reload shows secrets."""
    path = request.path_values["variable"]
    return _build_page(request, (await request.client.variables.read(path, namespace=request.namespace)).value)


async def create_variable(request: PageRequest) -> Page | Redirect:
    """Create a variable with the items of the form."""
    path = request.form.get("path", "").strip()
    if not path:
        raise FormRefused(400, "Enter the path of the variable, such as app/database.")
    namespace = request.form.get("namespace", "").strip() or DEFAULT_NAMESPACE
    return await _store(request, path, namespace, 0)


async def change_variable(request: PageRequest) -> Page | Redirect:
    """Replace the items of a variable with those of the form, unless it has changed since."""
    index = read_number(request.form, "index", 0)
    return await _store(request, request.path_values["variable"], request.namespace, index)


async def _store(request: PageRequest, path: str, namespace: str, index: int) -> Redirect:
    """Store the items of the form if the variable has this index; 0: if it does not exist."""
    try:
        await request.client.variables.put(path, _read_items(request.form), cas=index, namespace=namespace)
    except Conflict as refusal:
        text = "it exists already." if not index else "it has changed since you opened the form. Open it again."
        raise FormRefused(409, f"{path} was not stored: {text}") from refusal
    return Redirect(build_link("variables", path, namespace=namespace), f"{path} is stored.")


def _read_items(form: Mapping[str, str]) -> dict[str, str]:
    """Return the items of a form. One without a key is left out. Raises `FormRefused`."""
    items: dict[str, str] = {}
    for name, key in form.items():
        if not name.startswith(KEY_PREFIX) or not key.strip():
            continue
        if key.strip() in items:
            raise FormRefused(400, f"The key {key.strip()[:60]} occurs twice.")
        value = form.get(VALUE_PREFIX + name.removeprefix(KEY_PREFIX), "")
        items[key.strip()] = value.replace("\r\n", "\n")  # Browsers send line ends of a form in this way.
    if not items:
        raise FormRefused(400, "A variable has at least one key.")
    return items


async def delete_variable(request: PageRequest) -> Page | Redirect:
    """Delete a variable."""
    path = request.path_values["variable"]
    if not is_confirmed(request):
        url = build_link("variables", path, namespace=request.namespace)
        text = "Its values are deleted. Tasks that read it keep what they have read."
        return ask_first(request, f"Delete {path}?", text, button="Delete", cancel_url=url)
    await request.client.variables.delete(path, namespace=request.namespace)
    return Redirect(build_link("variables"), f"{path} is deleted.")


async def _find_variable(request: PageRequest) -> VariableView:
    """Return the variable of the path without its values. Raises `NotFound`."""
    path = request.path_values["variable"]
    found = (await request.client.variables.list(prefix=path, namespace=request.namespace, per_page=1)).value
    if not found or found[0].path != path:
        raise NotFound(RefusalCode.NOT_FOUND, f"There is no variable {path} that you may list.", 404)
    return found[0]


def _build_page(request: PageRequest, variable: VariableView) -> Page:
    return Page(
        "variable.html",
        variable.path,
        build_variable_view(variable, request.now_ns),
        section="cluster",
        namespace=variable.namespace,
        rights_path=variable.path,
        command=f"wharf var get --namespace {variable.namespace} {variable.path}",
        api_path=f"/v1/var/{quote_segment(variable.path)}?namespace={quote_segment(variable.namespace)}",
    )


KEY_PREFIX: Final = "key."
VALUE_PREFIX: Final = "value."
"""The names of the fields of an item, with its number."""
ROUTES: Final = (
    Route("variables", list_variables),
    Route("variables", create_variable, method="POST"),
    Route("variables/{variable}", show_variable),
    Route("variables/{variable}", change_variable, method="POST"),
    Route("variables/{variable}/delete", delete_variable, method="POST"),
    Route("variables/{variable}/values", show_values, method="POST"),
)
