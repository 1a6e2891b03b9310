"""The pages of access: who the person is, what the person may do, and in which browsers."""

import asyncio
import contextlib
from typing import Final

from wharf.contract.client.errors import NotFound, RequestRefused
from wharf.contract.wire.limits import CallerLimits
from wharf.web.page import DEFAULT_NAMESPACE, Page, PageRequest, Redirect, Route
from wharf.web.pages.lists import build_list_path, fetch_list
from wharf.web.rendering import build_link, quote_segment
from wharf.web.views.access import (
    CLUSTER_RIGHTS,
    NAMESPACE_RIGHTS,
    RightsRow,
    build_access_view,
    build_open_access_view,
    build_policy_list,
    build_rights_row,
    build_token_row,
)

MAX_NAMESPACES: Final = 5
"""In how many namespaces the rights are checked. Each is one check in this process."""


async def show_access(request: PageRequest) -> Page | Redirect:
    """Show the token of the person, what it allows, and the browsers that are signed in with it."""
    if not request.visitor.can_sign_in:
        return Page("access.html", "Access", build_open_access_view(), section="access")
    acl = request.client.acl
    token, policies, sessions, rights, limits = await asyncio.gather(
        acl.tokens.read_own(),
        acl.policies.read_own(),
        acl.sessions.list(),
        _list_rights(request),
        _read_limits(request),
    )
    view = build_access_view(
        token.value,
        policies.value or (),
        sessions.value,
        request.visitor.session_id,
        request.now_ns,
        rights=rights,
        limits=limits,
    )
    return Page(
        "access.html",
        "Access",
        view,
        section="access",
        command="wharf acl token self",
        api_path="/v1/acl/token/self",
    )


async def _list_rights(request: PageRequest) -> tuple[RightsRow, ...]:
    """Return what the person may do, in words: in the cluster, and in the first namespaces that the person sees."""
    try:
        namespaces = [each.name for each in (await request.client.namespaces.list()).value]
    except RequestRefused:
        namespaces = []
    shown = sorted(namespaces, key=lambda name: (name != DEFAULT_NAMESPACE, name))[:MAX_NAMESPACES]
    check = request.client.acl.check
    in_cluster, *in_namespaces = await asyncio.gather(
        check(tuple(CLUSTER_RIGHTS), stale=True),
        *(check(tuple(NAMESPACE_RIGHTS), namespace=name, stale=True) for name in shown),
    )
    return (
        *(
            build_rights_row(f"In the namespace {name}", NAMESPACE_RIGHTS, checked.value.allowed)
            for name, checked in zip(shown, in_namespaces, strict=True)
        ),
        build_rights_row("In the cluster", CLUSTER_RIGHTS, in_cluster.value.allowed),
    )


async def _read_limits(request: PageRequest) -> CallerLimits | None:
    """Return the rate limits of the person's token; `None` while limits are off."""
    try:
        return await request.client.limits.read_own()
    except RequestRefused:
        return None


async def end_session(request: PageRequest) -> Page | Redirect:
    """Sign a browser out, which may be this one."""
    session_id = request.path_values["session"]
    with contextlib.suppress(NotFound):  # It has ended in the meantime.
        await request.client.acl.sessions.end(session_id)
    if session_id == request.visitor.session_id:
        return Redirect("/ui/sign-in", "You are signed out.", session="")
    return Redirect(build_link("access"), "The browser is signed out.")


async def list_tokens(request: PageRequest) -> Page | Redirect:
    """Show one page of all tokens, without their secrets."""
    view = await fetch_list(
        request,
        ("access", "tokens"),
        request.client.acl.tokens.list,
        lambda token: build_token_row(token, request.now_ns),
    )
    if isinstance(view, Redirect):
        return view
    return Page(
        "tokens.html",
        "Tokens",
        view,
        section="access",
        command="wharf acl token list",
        api_path=build_list_path("/v1/acl/tokens", request),
    )


async def list_policies(request: PageRequest) -> Page | Redirect:
    """Show the policies that the person may read."""
    policies = (await request.client.acl.policies.list(prefix=request.query.get("prefix", ""))).value
    return Page(
        "policies.html",
        "Policies",
        build_policy_list(policies, request.query.get("prefix", "")),
        section="access",
        command="wharf acl policy list",
        api_path="/v1/acl/policies",
    )


async def show_policy(request: PageRequest) -> Page | Redirect:
    """Show the rules of a policy."""
    name = request.path_values["policy"]
    policy = (await request.client.acl.policies.read(name)).value
    return Page(
        "policy.html",
        name,
        policy,
        section="access",
        command=f"wharf acl policy info {name}",
        api_path=f"/v1/acl/policy/{quote_segment(name)}",
    )


ROUTES: Final = (
    Route("access", show_access),
    Route("access/sessions/{session}/end", end_session, method="POST"),
    Route("access/tokens", list_tokens),
    Route("access/policies", list_policies),
    Route("access/policies/{policy}", show_policy),
)
