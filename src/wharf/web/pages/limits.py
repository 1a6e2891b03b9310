"""The pages of the rate limits of the API: who is limited, grants and bans, and what a request would cost."""

import asyncio
from typing import Final

from wharf.contract.client.errors import InvalidRequest, NotFound, ServerUnavailable
from wharf.contract.wire.limits import LimitBanRequest, LimitGrantRequest, OrganizationActivity
from wharf.web.forms import read_number
from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.pages.confirmation import ask_first, is_confirmed
from wharf.web.rendering import build_link, count_noun, quote_segment
from wharf.web.views.limits import (
    DEFAULT_METHOD,
    SECRET_PREFIX,
    USER_PREFIX,
    build_activity_view,
    build_caller_view,
    build_cost_view,
    build_limits_view,
    name_caller,
    read_activity_query,
)


async def show_limits(request: PageRequest) -> Page | Redirect:
    """Show who is limited, the rules, the last refusals, grants and bans."""
    minutes = request.query.get("minutes", "")
    is_number = minutes.isascii() and minutes.isdigit() and len(minutes) < 6
    status = await request.client.limits.read(minutes=int(minutes) if is_number else None)
    return Page(
        "limits.html",
        "Limits",
        build_limits_view(status, request.now_ns),
        section="limits",
        command="wharf limits top",
        api_path="/v1/limits",
    )


async def show_caller(request: PageRequest) -> Page | Redirect:
    """Show the counters, grants and ban of one caller."""
    name, limits = request.path_values["caller"], request.client.limits
    caller, status, own = await asyncio.gather(
        limits.read_caller(name), limits.read(limit=0), _list_own_subjects(request)
    )
    return Page(
        "limited_caller.html",
        name,
        build_caller_view(caller, status, request.now_ns, own_text=_describe_own(request, caller.caller, own)),
        section="limits",
        command=f"wharf limits show {name}",
        api_path=f"/v1/limits/caller/{quote_segment(name)}",
    )


async def show_cost(request: PageRequest) -> Page | Redirect:
    """Show what a request of a caller would cost now."""
    name, path = request.query.get("caller", "").strip(), request.query.get("path", "").strip()
    method = request.query.get("method", "").strip().upper()[:20] or DEFAULT_METHOD
    cost = await request.client.limits.estimate(name, path, method=method) if name and path else None
    return Page(
        "limit_cost.html",
        "Cost of a request",
        build_cost_view(name, method, path, cost),
        section="limits",
        api_path=f"/v1/limits/cost?caller={quote_segment(name)}&method={method}&path={quote_segment(path)}"
        if cost
        else "",
    )


async def show_organization(request: PageRequest) -> Page | Redirect:
    """Show who has sent requests about the resources of an organization. The gateway of the server knows it."""
    query = read_activity_query(request.query)
    found: OrganizationActivity | None = None
    problem, status = "", 200
    if query.organization:
        try:
            found = await request.client.limits.read_activity(
                query.organization, minutes=query.minutes, page=query.page
            )
        except (InvalidRequest, NotFound, ServerUnavailable) as refusal:
            problem, status = refusal.text, refusal.status
    return Page(
        "limit_activity.html",
        f"Activity of {query.organization}" if query.organization else "Activity of an organization",
        build_activity_view(query, found, problem, request.now_ns),
        section="limits",
        status=status,
        command=query.command,
        api_path=query.api_path,
    )


async def add_grant(request: PageRequest) -> Page | Redirect:
    """Raise the ceiling of a caller's bucket for some time."""
    form = request.form
    grant = await request.client.limits.grant(
        LimitGrantRequest(
            caller=form.get("caller", ""),
            bucket=form.get("bucket", ""),
            amount=read_number(form, "amount", 0),
            duration=form.get("duration", "").strip(),
            reason=form.get("reason", ""),
        )
    )
    return Redirect(build_link("limits", "callers", grant.caller), f"{grant.amount:,} more of {grant.bucket} granted.")


async def end_grants(request: PageRequest) -> Page | Redirect:
    """End the grants of a caller for a bucket."""
    name = request.path_values["caller"]
    ended = await request.client.limits.end_grants(name, bucket=request.query.get("bucket", ""))
    return Redirect(build_link("limits"), f"{count_noun(len(ended), 'grant has', 'grants have')} ended.")


async def add_ban(request: PageRequest) -> Page | Redirect:
    """Refuse all requests of a caller for some time, after a question that names it."""
    form = request.form
    if not is_confirmed(request):
        return await _ask_before_ban(request)
    ban = await request.client.limits.ban(
        LimitBanRequest(
            subject=form.get("subject", ""),
            duration=form.get("duration", "").strip(),
            reason=form.get("reason", ""),
            message=form.get("message", "").strip(),
        )
    )
    recorded = "" if ban.is_enforced else " The rules only record this ban: its requests are admitted."
    return Redirect(build_link("limits"), f"{ban.subject} is banned.{recorded}")


async def _ask_before_ban(request: PageRequest) -> Page:
    """Ask whether to ban the caller of the form, by its name. Warns a person who would ban the own requests."""
    subject, limits = request.form.get("subject", "").strip(), request.client.limits
    named, token = name_caller(subject, ""), ""
    try:
        found = await limits.read_caller(subject)
        named, token = name_caller(found.caller, found.token_name), found.ban_subject
    except NotFound:
        if not subject.startswith(SECRET_PREFIX):
            raise
    own = await _list_own_subjects(request)
    id_text = f" ({named.id})" if named.id and named.id != named.text else ""
    return ask_first(
        request,
        f"Ban {named.text}?",
        f"All requests of {named.text}{id_text} are refused for {request.form.get('duration', '')[:20]}.",
        button=f"Ban {named.text}",
        cancel_url=build_link("limits"),
        warning="This is you: you could not use the pages, and another operator must end the ban."
        if own & {subject, token, f"{USER_PREFIX}{named.id}"}
        else "",
    )


def _describe_own(request: PageRequest, caller: str, own: set[str]) -> str:
    """Return how the person who looks at the page of a caller is related to it."""
    if caller not in own:
        return ""
    if request.visitor.is_signed_in and caller == f"address:{request.visitor.address}":
        return "Your browser has this address, but your requests are counted by your token."
    return "This is you."


async def _list_own_subjects(request: PageRequest) -> set[str]:
    """Return what bans of the person who looks at the page would name: its token, its secret and its address."""
    own = {f"address:{request.visitor.address}"}
    if request.visitor.is_signed_in:
        caller = await request.client.limits.read_own()
        own |= {caller.caller, *filter(None, (caller.ban_subject,))}
    return own


async def end_ban(request: PageRequest) -> Page | Redirect:
    """End the ban of a caller."""
    name = request.path_values["caller"]
    await request.client.limits.end_ban(name)
    return Redirect(build_link("limits"), "The ban has ended.")


ROUTES: Final = (
    Route("limits", show_limits),
    Route("limits/cost", show_cost),
    Route("limits/organization", show_organization),
    Route("limits/callers/{caller}", show_caller),
    Route("limits/grants", add_grant, method="POST"),
    Route("limits/bans", add_ban, method="POST"),
    Route("limits/callers/{caller}/end-grants", end_grants, method="POST"),
    Route("limits/callers/{caller}/end-ban", end_ban, method="POST"),
)
