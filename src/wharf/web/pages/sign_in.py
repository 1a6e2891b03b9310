"""Signing in and out."""

import contextlib
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.contract.client.async_client import AsyncClient
from wharf.contract.client.errors import (
    AuthenticationFailed,
    Forbidden,
    InvalidRequest,
    NotFound,
    RateLimited,
    RequestRefused,
)
from wharf.contract.model.acl.auth_methods import LOGIN_REJECTED_PREFIX, AuthMethodType
from wharf.contract.wire.acl import AuthMethodStub
from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.rendering import build_link

UNPROTECTED_TEXT: Final = (
    "Nobody can sign in over this connection, because others could read the token on the way. Open the pages with https, or on "
    "the machine of the server."
)
USED_LINK_TEXT: Final = "This link was used already, or is too old. Run wharf ui again for a new one."
FIRST_PAGE: Final = "/ui"
MAX_NOTICE_CHARS: Final = 500
"""Limits the cookie that holds the notice."""
MAX_METHODS: Final = 20
"""How many auth methods of type JWT the form offers."""
OWN_PAGE: Final = re.compile(r"/ui(?:[/?][\x21-\x7e]*)?")
"""An address below `/ui` of this server. Browsers take `//host` and `/\\host` for other servers; those do not begin like this."""


class ProviderLink(msgspec.Struct, frozen=True):
    """The way to the sign-in at an identity provider."""

    name: str
    url: str


class SignInView(msgspec.Struct, frozen=True):
    """The forms, with what was wrong before."""

    next_url: str
    error: str
    is_possible: bool
    providers: tuple[ProviderLink, ...]
    jwt_methods: tuple[str, ...]
    """The auth methods that accept a token of an identity provider."""
    once: str = ""
    """The secret of a one-time link to which a page of another site led: the person must confirm it."""


async def show_sign_in(request: PageRequest) -> Page | Redirect:
    """Show the form for a token. With the secret of a one-time link (`once`), sign in at once.

    This is the only GET that changes something: the secret is worthless afterwards, and the redirect keeps it out of the
    browser's history. If a page of another site leads here, the person must confirm it first: that page could otherwise sign
    people in with a token of its author, who then reads what they enter.
    """
    next_url = check_next_url(request.query.get("next", ""))
    if not request.visitor.can_sign_in:
        return Redirect(next_url)
    if not request.visitor.is_protected:
        return await _build_page(request, next_url, UNPROTECTED_TEXT)
    once = request.query.get("once", "")
    if once and not request.is_from_foreign_page:
        return await _sign_in_by_link(request, once, next_url)
    return await _build_page(request, next_url, "", once)


async def _sign_in_by_link(request: PageRequest, once: str, next_url: str) -> Page | Redirect:
    """Sign the browser in with the secret of a one-time link."""
    try:
        exchanged = await request.connect("").acl.tokens.exchange_one_time(once)
    except (Forbidden, InvalidRequest):
        return await _build_page(request, next_url, USED_LINK_TEXT)
    return await start_session(request, request.connect(exchanged.token.secret_id), next_url)


async def sign_in(request: PageRequest) -> Page | Redirect:
    """Sign the browser in with the token of the form, which may be one of an identity provider (`method`), or with a confirmed
    one-time link.
    """
    next_url = check_next_url(request.form.get("next", ""))
    token, method = request.form.get("token", "").strip(), request.form.get("method", "")
    if not request.visitor.is_protected:
        return await _build_page(request, next_url, UNPROTECTED_TEXT)
    if once := request.form.get("once", ""):
        return await _sign_in_by_link(request, once, next_url)
    if not token:
        return await _build_page(request, next_url, "Enter the secret of a token.")
    try:
        if method:
            token = (await request.connect("").acl.login(method, token)).secret_id
        return await start_session(request, request.connect(token), next_url)
    except (AuthenticationFailed, Forbidden, InvalidRequest, RateLimited) as refused:
        if refused.is_by_limiter:
            return await _build_page(request, next_url, f"The server refuses your requests for now. {refused.text}")
        if method:
            reason = refused.text.removeprefix(LOGIN_REJECTED_PREFIX)
            return await _build_page(request, next_url, f"The token was not accepted: {reason}.")
        return await _build_page(request, next_url, "No token has this secret, or the token has expired.")


async def start_session(request: PageRequest, client: AsyncClient, next_url: str) -> Redirect:
    """Sign the browser in with the token of the client, and lead it to a page. Raises `RequestRefused`.

    The session that the browser had before ends, and with it what other tabs receive with its rights.
    """
    created = await client.acl.sessions.create(address=request.visitor.address, browser=request.visitor.browser)
    await _end_session(request)
    return Redirect(next_url, session=created.secret_id)


async def sign_out(request: PageRequest) -> Page | Redirect:
    """End the session of the browser. The browser forgets it even if the server refuses, such as while its person is banned."""
    try:
        await _end_session(request)
    except RequestRefused as refusal:
        text = (
            f"This browser is signed out. The server could not end the session itself, which ends later: {refusal.text}"
        )
        return Redirect("/ui/sign-in", text[:MAX_NOTICE_CHARS], session="")
    return Redirect("/ui/sign-in", "You are signed out.", session="")


async def _end_session(request: PageRequest) -> None:
    """End the session with which the browser has sent the request, if it has one."""
    if session_id := request.visitor.session_id:
        with contextlib.suppress(NotFound):  # It has ended in the meantime.
            await request.client.acl.sessions.end(session_id)


def check_next_url(url: str) -> str:
    """Return the page to show after signing in: the one that was asked for, if it is a page of this server."""
    return url if OWN_PAGE.fullmatch(url) and "\\" not in url else FIRST_PAGE


async def _build_page(request: PageRequest, next_url: str, error: str, once: str = "") -> Page:
    providers: tuple[ProviderLink, ...] = ()
    jwt_methods: tuple[str, ...] = ()
    if request.visitor.is_protected:
        next_page = None if next_url == FIRST_PAGE else next_url
        providers = tuple(
            ProviderLink(each.name, build_link("sign-in", "with", each.name, next=next_page))
            for each in request.providers()
        )
        methods: Sequence[AuthMethodStub] = ()
        with contextlib.suppress(RequestRefused):  # Such as by a rate limit. The form for tokens is shown nevertheless.
            methods = (await request.connect("").acl.auth_methods.list()).value
        jwt_methods = tuple(each.name for each in methods if each.type == AuthMethodType.JWT)[:MAX_METHODS]
    view = SignInView(
        next_url=next_url,
        error=error,
        is_possible=request.visitor.is_protected,
        providers=providers,
        jwt_methods=jwt_methods,
        once=once,
    )
    return Page("sign_in.html", "Sign in", view, status=400 if error else 200, has_menu=request.visitor.is_signed_in)


ROUTES: Final = (
    Route("sign-in", show_sign_in),
    Route("sign-in", sign_in, method="POST"),
    Route("sign-out", sign_out, method="POST"),
)
