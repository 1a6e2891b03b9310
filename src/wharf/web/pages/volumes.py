"""The pages of host volumes."""

from typing import Final

from wharf.contract.client.errors import InvalidRequest, RequestRefused
from wharf.contract.model.volumes import HostVolume, HostVolumeCapability
from wharf.contract.wire.volumes import HostVolumeResponse
from wharf.web.forms import FormRefused, read_number
from wharf.web.page import DEFAULT_NAMESPACE, Page, PageRequest, Redirect, Route
from wharf.web.pages.confirmation import ask_first, is_confirmed
from wharf.web.pages.lists import build_list_command, build_list_path, fetch_list, find_sign_in
from wharf.web.rendering import UUID, build_link, quote_for_filter
from wharf.web.views.field_errors import FormView, build_refused_form
from wharf.web.views.volumes import (
    EMPTY_VOLUME_FORM,
    FIELD_HINTS,
    MEGABYTE,
    NUMBER_HINTS,
    VolumeListView,
    build_volume_row,
    build_volume_view,
)


async def list_volumes(request: PageRequest) -> Page | Redirect:
    """Show one page of the host volumes."""
    return await _build_list(request, EMPTY_VOLUME_FORM, EMPTY_VOLUME_FORM)


async def _build_list(request: PageRequest, create: FormView, register: FormView) -> Page | Redirect:
    """Return the list with its two forms, of which one may have been refused."""
    found = await fetch_list(
        request,
        ("volumes",),
        request.client.host_volumes.list,
        build_volume_row,
        namespace=request.listed_namespace,
    )
    if isinstance(found, Redirect):
        return found
    if sign_in := find_sign_in(request, has_rows=bool(found.rows)):
        return sign_in
    is_refused = create.is_refused or register.is_refused
    return Page(
        "volumes.html",
        "Volumes",
        VolumeListView(found, create, register),
        section="cluster",
        # A form that is being corrected is not updated.
        topics=() if is_refused else ("HostVolume",),
        has_rights_anywhere=True,
        status=400 if is_refused else 200,
        command=build_list_command("wharf volume status", request),
        api_path=build_list_path("/v1/volumes", request, has_namespace=True),
    )


async def show_volume(request: PageRequest) -> Page | Redirect:
    """Show where a host volume is, and who may use it how."""
    volume_id = request.path_values["volume"]
    volume = (await request.client.host_volumes.read(volume_id, namespace=request.namespace)).value
    return Page(
        "volume.html",
        volume.name,
        build_volume_view(volume),
        section="cluster",
        topics=(f"HostVolume:{volume_id}",),
        namespace=volume.namespace,
        command=f"wharf volume status {volume_id[:8]}",
        api_path=f"/v1/volume/host/{volume_id}",
    )


async def add_volume(request: PageRequest) -> Page | Redirect:
    """Create a volume, or register a folder that exists as one. A mistake is shown at its field."""
    is_new = request.form.get("kind") != "register"
    try:
        stored = await _add(request, is_new=is_new)
    except _FieldRefused as refusal:
        form = FormView(request.form, {refusal.field: str(refusal)})
    except FormRefused as refused:
        form = build_refused_form(request.form, str(refused), NUMBER_HINTS)
    except InvalidRequest as refusal:
        form = build_refused_form(request.form, refusal.text, FIELD_HINTS)
    else:
        volume = stored.volume
        url = build_link("volumes", volume.id, namespace=_hide_default(volume.namespace))
        notice = f"The volume {volume.name} is {'created' if is_new else 'registered'}."
        return Redirect(url, f"{notice} Warning: {stored.warnings}." if stored.warnings else notice)
    return await _build_list(request, *((form, EMPTY_VOLUME_FORM) if is_new else (EMPTY_VOLUME_FORM, form)))


async def _add(request: PageRequest, *, is_new: bool) -> HostVolumeResponse:
    """Return the new volume as it was stored, with the warnings. Raises `RequestRefused`, `FormRefused` and `_FieldRefused`."""
    form = request.form
    namespace = form.get("namespace", "").strip() or DEFAULT_NAMESPACE
    volume = HostVolume(
        namespace=namespace,
        name=form.get("name", "").strip(),
        node_id=await _find_node(request, form.get("node", "").strip()),
        node_pool=form.get("pool", "").strip(),
        plugin_id=form.get("plugin", "").strip(),
        host_path=form.get("path", "").strip(),
        requested_capacity_min_bytes=read_number(form, "min", 0) * MEGABYTE,
        requested_capacity_max_bytes=read_number(form, "max", 0) * MEGABYTE,
        requested_capabilities=(HostVolumeCapability(access_mode=form.get("access", "")),),
    )
    volumes = request.client.host_volumes
    add = volumes.create if is_new else volumes.register
    return await add(volume, namespace=namespace)


async def _find_node(request: PageRequest, text: str) -> str:
    """Return the ID of the node with this name or ID. Raises `_FieldRefused` if there is none, or more than one."""
    if not text or UUID.fullmatch(text):
        return text
    try:
        found = (await request.client.nodes.list(filter=f"Name == {quote_for_filter(text)}", per_page=2)).value
    except RequestRefused as refusal:
        reason = "Enter the ID of the node: you may not read nodes, so its name cannot be looked up."
        raise _FieldRefused("node", reason) from refusal
    if len(found) == 1:
        return found[0].id
    reason = "Several nodes have this name: enter the ID of one." if found else "No node has this name or ID."
    raise _FieldRefused("node", reason)


class _FieldRefused(Exception):
    """The error for a field of a form. The text says what is wrong with it."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


async def delete_volume(request: PageRequest) -> Page | Redirect:
    """Delete a volume, which no allocation may use."""
    volume_id, namespace = request.path_values["volume"], request.namespace
    volume = (await request.client.host_volumes.read(volume_id, namespace=namespace)).value
    if not is_confirmed(request):
        url = build_link("volumes", volume_id, namespace=_hide_default(namespace))
        return ask_first(
            request,
            f"Delete the volume {volume.name}?",
            "If a plugin created its folder, the node deletes all files in it. A registered folder stays. "
            "A volume that an allocation uses cannot be deleted.",
            button="Delete",
            cancel_url=url,
        )
    await request.client.host_volumes.delete(volume_id, namespace=namespace)
    return Redirect(build_link("volumes"), f"The volume {volume.name} is deleted.")


def _hide_default(namespace: str) -> str:
    """Return the namespace for an address; empty for the default one."""
    return "" if namespace == DEFAULT_NAMESPACE else namespace


ROUTES: Final = (
    Route("volumes", list_volumes),
    Route("volumes", add_volume, method="POST"),
    Route("volumes/{volume}", show_volume),
    Route("volumes/{volume}/delete", delete_volume, method="POST"),
)
