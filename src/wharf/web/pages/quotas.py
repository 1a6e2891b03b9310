"""The pages of quotas."""

import asyncio
from typing import Final

import msgspec

from wharf.contract.client.errors import NotFound
from wharf.contract.model.quotas import Quota, QuotaLimit
from wharf.web.forms import read_number
from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.pages.confirmation import ask_first, is_confirmed
from wharf.web.pages.lists import find_sign_in
from wharf.web.rendering import build_link, quote_segment
from wharf.web.views.quotas import build_quota_list, build_quota_view


async def list_quotas(request: PageRequest) -> Page | Redirect:
    """Show the quotas, and how much of each is used."""
    prefix = request.query.get("prefix", "")
    quotas, usages = await asyncio.gather(
        request.client.quotas.list(prefix=prefix), request.client.quotas.usages(prefix=prefix)
    )
    if sign_in := find_sign_in(request, has_rows=bool(quotas.value)):
        return sign_in
    return Page(
        "quotas.html",
        "Quotas",
        build_quota_list(quotas.value, usages.value, prefix),
        section="cluster",
        topics=("Allocation",),
        command="wharf quota list",
        api_path="/v1/quotas",
    )


async def show_quota(request: PageRequest) -> Page | Redirect:
    """Show the limits of a quota, and how much of each is used."""
    name = request.path_values["quota"]
    quota, usage = await asyncio.gather(request.client.quotas.read(name), request.client.quotas.usage(name))
    return Page(
        "quota.html",
        name,
        build_quota_view(quota.value, usage.value),
        section="cluster",
        topics=("Allocation",),
        command=f"wharf quota status {name}",
        api_path=f"/v1/quota/usage/{quote_segment(name)}",
    )


async def store_quota(request: PageRequest) -> Page | Redirect:
    """Create a quota, or change its limits of CPU, memory and allocations in one region. Its other limits stay."""
    form, name, region = request.form, request.form.get("name", "").strip(), request.form.get("region", "").strip()
    try:
        former = (await request.client.quotas.read(name)).value if name else Quota(name=name)
    except NotFound:
        former = Quota(name=name)
    limits = {limit.region: limit for limit in former.limits or ()}
    limit = limits.get(region, QuotaLimit(region=region))
    limits[region] = msgspec.structs.replace(
        limit,
        region_limit=msgspec.structs.replace(
            limit.region_limit,
            cpu=read_number(form, "cpu", limit.region_limit.cpu),
            memory_mb=read_number(form, "memory", limit.region_limit.memory_mb),
            count=read_number(form, "count", limit.region_limit.count),
        ),
    )
    await request.client.quotas.store(
        msgspec.structs.replace(
            former, description=form.get("description", former.description).strip(), limits=tuple(limits.values())
        )
    )
    return Redirect(build_link("quotas", name), "The quota is stored.")


async def delete_quota(request: PageRequest) -> Page | Redirect:
    """Delete a quota, which no namespace may use."""
    name = request.path_values["quota"]
    if not is_confirmed(request):
        url = build_link("quotas", name)
        text = "A quota that a namespace uses cannot be deleted."
        return ask_first(request, f"Delete the quota {name}?", text, button="Delete", cancel_url=url)
    await request.client.quotas.delete(name)
    return Redirect(build_link("quotas"), f"The quota {name} is deleted.")


ROUTES: Final = (
    Route("quotas", list_quotas),
    Route("quotas", store_quota, method="POST"),
    Route("quotas/{quota}", show_quota),
    Route("quotas/{quota}/delete", delete_quota, method="POST"),
)
