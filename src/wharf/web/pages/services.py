"""The pages of services."""

from typing import Any, Final

from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.pages.confirmation import ask_first, is_confirmed
from wharf.web.pages.lists import fetch_list
from wharf.web.rendering import build_link, quote_segment
from wharf.web.views.services import build_instance_row, build_service_list


async def list_services(request: PageRequest) -> Page | Redirect:
    """Show the names of services, by namespace."""
    prefix = request.query.get("prefix", "")
    services = (await request.client.services.list(namespace=request.listed_namespace, prefix=prefix)).value
    return Page(
        "services.html",
        "Services",
        build_service_list(services, prefix),
        section="cluster",
        topics=("Service",),
        command="wharf service list",
        api_path="/v1/services?namespace=*",
    )


async def show_service(request: PageRequest) -> Page | Redirect:
    """Show one page of the instances of a service, with their addresses."""
    name = request.path_values["service"]

    async def list_instances(*, prefix: str, **options: Any) -> Any:
        del prefix  # All instances have the name of the service.
        return await request.client.services.read(name, **options)

    view = await fetch_list(
        request,
        ("services", name),
        list_instances,
        build_instance_row,
        namespace=request.namespace,
        can_go_back=False,
    )
    if isinstance(view, Redirect):
        return view
    return Page(
        "service.html",
        name,
        view,
        section="cluster",
        topics=("Service",),
        command=f"wharf service info {name}",
        api_path=f"/v1/service/{quote_segment(name)}",
    )


async def deregister_instance(request: PageRequest) -> Page | Redirect:
    """Delete the registration of an instance of a service."""
    name, instance_id = request.path_values["service"], request.path_values["instance"]
    url = build_link("services", name, namespace=request.query.get("namespace"))
    if not is_confirmed(request):
        return ask_first(
            request,
            f"Deregister an instance of {name}?",
            f"Clients of the service no longer find the instance {instance_id}. Its task keeps running, and registers it again "
            "when it is restarted.",
            button="Deregister",
            cancel_url=url,
        )
    await request.client.services.delete(name, instance_id, namespace=request.namespace)
    return Redirect(url, "The instance is deregistered.")


ROUTES: Final = (
    Route("services", list_services, is_shared=True),
    Route("services/{service}", show_service, is_shared=True),
    Route("services/{service}/{instance}/deregister", deregister_instance, method="POST"),
)
