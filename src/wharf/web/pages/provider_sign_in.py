"""Signing in at an identity provider: the browser goes there, and comes back with a code that the API exchanges for a token.

The nonce of the login is in a cookie, so nobody can sign a browser in with a login that another browser began.
"""

import re
from typing import Final

import msgspec

from wharf.contract.client.errors import RequestRefused
from wharf.contract.client.transport import Unreachable
from wharf.contract.model.acl.auth_methods import LOGIN_REJECTED_PREFIX, PAGE_CALLBACK_PATHS
from wharf.contract.model.acl.binding_rules import NO_BINDINGS_TEXT
from wharf.contract.wire.acl import CompleteAuthRequest
from wharf.web.page import Page, PageRequest, Redirect, Route
from wharf.web.pages.sign_in import FIRST_PAGE, UNPROTECTED_TEXT, check_next_url, start_session
from wharf.web.rendering import build_link

UNKNOWN_LOGIN_TEXT: Final = (
    "This sign-in was used already, took more than ten minutes, or began in another browser. Begin again."
)
MAX_NEXT_CHARS: Final = 400
"""The longest address to come back to that fits into the cookie together with the rest."""
MAX_REASON_CHARS: Final = 300
"""The longest text of a provider that a page shows."""
MAX_NAME_CHARS: Final = 60
"""How much of a name that no auth method has is repeated."""
AUTH_URL: Final = re.compile(r"https?://[\x21-\x7e]+")


class PendingSignIn(msgspec.Struct, frozen=True, array_like=True):
    """What the cookie of a browser holds while its person is at a provider. The order of the fields is its format."""

    method: str
    nonce: str
    next_url: str


async def begin_sign_in(request: PageRequest) -> Page | Redirect:
    """Lead the browser to the identity provider."""
    name, next_url = request.path_values["method"], check_next_url(request.query.get("next", ""))
    if not request.visitor.can_sign_in:
        return Redirect(next_url)
    if not request.visitor.is_protected:
        return _return_to_form(next_url, UNPROTECTED_TEXT)
    provider = next((each for each in request.providers() if each.name == name), None)
    if provider is None:
        return _return_to_form(next_url, f"There is no sign-in with {name[:MAX_NAME_CHARS]}.")
    if not provider.redirect_uri:
        callback = f"{request.origin}{PAGE_CALLBACK_PATHS[0]}"
        return _return_to_form(
            next_url,
            f"The login method {name} does not send browsers back to this address. Add {callback} to its AllowedRedirectURIs, and "
            "to the redirect addresses at the identity provider.",
        )
    nonce = request.world.new_secret()
    try:
        reply = await request.connect("").acl.create_oidc_auth_url(name, provider.redirect_uri, nonce)
    except (RequestRefused, Unreachable) as problem:
        return _return_to_form(next_url, f"The sign-in with {name} could not begin: {_read_reason(problem)}.")
    if not AUTH_URL.fullmatch(reply.auth_url):
        return _return_to_form(next_url, f"The identity provider of {name} has no valid address for the sign-in.")
    pending = PendingSignIn(name, nonce, next_url if len(next_url) <= MAX_NEXT_CHARS else FIRST_PAGE)
    return Redirect(reply.auth_url, pending_sign_in=msgspec.json.encode(pending).decode())


async def complete_sign_in(request: PageRequest) -> Page | Redirect:
    """Sign the browser in that the identity provider has sent back.

    Each outcome is a redirect: the code of the provider does not stay in the address and the history of the browser.
    """
    if not request.visitor.can_sign_in:
        return Redirect(FIRST_PAGE)
    if not request.visitor.is_protected:
        return _return_to_form(FIRST_PAGE, UNPROTECTED_TEXT)
    pending = _read_pending(request.pending_sign_in)
    if pending is None:
        return _return_to_form(FIRST_PAGE, UNKNOWN_LOGIN_TEXT)
    next_url, query = check_next_url(pending.next_url), request.query
    if "error" in query:
        reason = query.get("error_description") or query["error"]
        return _return_to_form(next_url, f"The identity provider refused the sign-in: {reason[:MAX_REASON_CHARS]}")
    try:
        token = await request.connect("").acl.complete_oidc_login(
            CompleteAuthRequest(
                auth_method_name=pending.method,
                client_nonce=pending.nonce,
                state=query.get("state", ""),
                code=query.get("code", ""),
                iss=query.get("iss", ""),
                redirect_uri=f"{request.origin}{request.path}",
            )
        )
        signed_in = await start_session(request, request.connect(token.secret_id), next_url)
    except (RequestRefused, Unreachable) as problem:
        return _return_to_form(next_url, _explain_failure(pending.method, problem))
    return msgspec.structs.replace(signed_in, pending_sign_in="")


def _read_pending(text: str) -> PendingSignIn | None:
    try:
        return msgspec.json.decode(text, type=PendingSignIn) if text else None
    except msgspec.MsgspecError:
        return None


def _explain_failure(method: str, problem: RequestRefused | Unreachable) -> str:
    if isinstance(problem, RequestRefused) and problem.text == NO_BINDINGS_TEXT:
        return (
            f"The identity provider knows you, but no binding rule of the login method {method} gives you a role or a policy. Ask "
            "an administrator for one."
        )
    return f"The sign-in with {method} failed: {_read_reason(problem)}."


def _read_reason(problem: RequestRefused | Unreachable) -> str:
    """Return why a login failed, without the words that all such refusals begin with."""
    return str(problem).removeprefix(LOGIN_REJECTED_PREFIX).removesuffix(".")[:MAX_REASON_CHARS]


def _return_to_form(next_url: str, problem: str) -> Redirect:
    """Return to the page of the sign-in, which shows what is wrong. The login that has begun cannot be completed."""
    next_page = None if next_url == FIRST_PAGE else next_url
    return Redirect(build_link("sign-in", next=next_page), notice=problem, pending_sign_in="")


ROUTES: Final = (
    Route("sign-in/with/{method}", begin_sign_in),
    *(Route(path.removeprefix("/ui/"), complete_sign_in) for path in PAGE_CALLBACK_PATHS),
)
