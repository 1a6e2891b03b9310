"""The pages of host volumes."""

from typing import Final

from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.pages.lists import fetch_list, find_sign_in
from wharf.web.views.volumes import build_volume_row, build_volume_view


async def list_volumes(request: PageRequest) -> Page | Redirect:
    """Show one page of the host volumes."""
    view = await fetch_list(
        request,
        ("volumes",),
        request.client.host_volumes.list,
        build_volume_row,
        namespace=request.listed_namespace,
    )
    if isinstance(view, Redirect):
        return view
    if sign_in := find_sign_in(request, has_rows=bool(view.rows)):
        return sign_in
    return Page(
        "volumes.html",
        "Volumes",
        view,
        section="cluster",
        topics=("HostVolume",),
        command="wharf volume status",
        api_path="/v1/volumes?namespace=*",
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
        command=f"wharf volume status {volume_id[:8]}",
        api_path=f"/v1/volume/host/{volume_id}",
    )


ROUTES: Final = (Route("volumes", list_volumes), Route("volumes/{volume}", show_volume))
