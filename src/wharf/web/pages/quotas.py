"""The pages of quotas."""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from wharf.contract.client.errors import InvalidRequest, NotFound
from wharf.contract.model.quotas import Quota, QuotaLimit
from wharf.web.forms import FormRefused, read_number
from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.pages.confirmation import ask_first, is_confirmed
from wharf.web.pages.lists import find_sign_in
from wharf.web.rendering import build_link, quote_segment
from wharf.web.views.field_errors import FormView, build_refused_form
from wharf.web.views.quotas import (
    FIELD_HINTS,
    NEW_QUOTA_FORM,
    QuotaListView,
    build_quota_list,
    build_quota_view,
)


async def list_quotas(request: PageRequest) -> Page | Redirect:
    """Show the quotas, and how much of each is used."""
    return await _build_list(request, NEW_QUOTA_FORM)


async def _build_list(request: PageRequest, form: FormView) -> Page | Redirect:
    prefix = request.query.get("prefix", "")
    quotas, usages = await asyncio.gather(
        request.client.quotas.list(prefix=prefix), request.client.quotas.usages(prefix=prefix)
    )
    if sign_in := find_sign_in(request, has_rows=bool(quotas.value)):
        return sign_in
    return Page(
        "quotas.html",
        "Quotas",
        QuotaListView(build_quota_list(quotas.value, usages.value, prefix), form),
        section="cluster",
        topics=() if form.is_refused else ("Allocation",),
        status=400 if form.is_refused else 200,
        command="wharf quota list",
        api_path="/v1/quotas",
    )


async def show_quota(request: PageRequest) -> Page | Redirect:
    """Show the limits of a quota, and how much of each is used."""
    return await _build_page(request, await _read_quota(request), None)


async def _read_quota(request: PageRequest) -> Quota:
    return (await request.client.quotas.read(request.path_values["quota"])).value


async def _build_page(request: PageRequest, quota: Quota, refused: FormView | None) -> Page:
    """Return the page of a quota, with the form that was refused, if there is one."""
    usage = await request.client.quotas.usage(quota.name)
    return Page(
        "quota.html",
        quota.name,
        build_quota_view(quota, usage.value, refused),
        section="cluster",
        topics=("Allocation",) if refused is None else (),
        status=200 if refused is None else 400,
        command=f"wharf quota status {quota.name}",
        api_path=f"/v1/quota/usage/{quote_segment(quota.name)}",
    )


async def create_quota(request: PageRequest) -> Page | Redirect:
    """Create a quota with limits in one region. One that exists is not replaced. A mistake is shown at its field."""
    form = request.form
    name = form.get("name", "").strip()
    try:
        if name:
            await request.client.quotas.read(name)
            return await _build_list(request, FormView(form, {"name": f"There is a quota {name} already."}))
    except NotFound:
        pass
    if refused := await _store(request, Quota(name=name)):
        return await _build_list(request, refused)
    return Redirect(build_link("quotas", name), f"The quota {name} is created.")


async def change_quota(request: PageRequest) -> Page | Redirect:
    """Change the limits of a quota of CPU, memory and allocations in one region. Its other limits stay."""
    former = await _read_quota(request)
    if refused := await _store(request, former):
        return await _build_page(request, former, refused)
    return Redirect(build_link("quotas", former.name), f"The quota {former.name} is stored.")


async def _store(request: PageRequest, former: Quota) -> FormView | None:
    """Store a quota with the limits of the form. Return the form with its mistakes if it is refused."""
    try:
        await request.client.quotas.store(_change_quota(former, request.form))
    except FormRefused as refusal:
        return build_refused_form(request.form, str(refusal), FIELD_HINTS)
    except InvalidRequest as refusal:
        return build_refused_form(request.form, refusal.text, FIELD_HINTS)
    return None


def _change_quota(former: Quota, form: Mapping[str, str]) -> Quota:
    """Return a quota with the limits of a form. Raises `FormRefused` for what is not a number."""
    region = form.get("region", "").strip()
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
    return msgspec.structs.replace(
        former, description=form.get("description", former.description).strip(), limits=tuple(limits.values())
    )


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
    Route("quotas", create_quota, method="POST"),
    Route("quotas/{quota}", show_quota),
    Route("quotas/{quota}", change_quota, method="POST"),
    Route("quotas/{quota}/delete", delete_quota, method="POST"),
)
