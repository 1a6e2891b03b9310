"""Refuses requests that a browser sends for a web page of another site, unless the page presents a token.

Browsers let every page send requests and open websockets to every server that they reach, also to one on their own machine. They
report the page in headers that its scripts cannot change: `Origin` and `Sec-Fetch-Site`. Requests of other programs have
neither and pass unchanged. The pages below `/ui` have stricter checks of their own; only the name of the server is checked for them
here.
"""

import logging
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from wharf.cluster.api.asgi import App, Receive, Scope, Send
from wharf.cluster.api.replies.cors import list_cors_methods
from wharf.cluster.api.replies.sender import build_extra_headers, build_refusal_headers
from wharf.cluster.api.websockets.sockets import NEEDS_TOKEN_KEY, refuse_handshake
from wharf.contract.model.body_limits import cut_echo
from wharf.contract.model.message_texts import format_message
from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason
from wharf.contract.wire.credentials import read_credentials, read_token
from wharf.contract.wire.errors import STATUS_BY_CODE
from wharf.world import World
from wharf.world.addresses import is_loopback
from wharf.world.log_limit import LogLimit

log = logging.getLogger(__name__)

ORIGIN_HEADER: Final = b"origin"
SITE_HEADER: Final = b"sec-fetch-site"
BROWSER_HEADERS: Final = frozenset((ORIGIN_HEADER, SITE_HEADER, b"accept-language"))
"""Headers that browsers send. Without `Accept-Language`, a page that reads over plain HTTP from a name of its own would look like
a program: browsers then send neither of the others."""
OWN_SITES: Final = frozenset((b"same-origin", b"none"))
"""Values of `Sec-Fetch-Site` for a request by a page of this server, or by the user, such as a typed address."""
PAGE_PREFIX: Final = "/ui"
DEFAULT_PORTS: Final[Mapping[str, str]] = {"http": ":80", "https": ":443"}
PRIVATE_SUFFIXES: Final = (".localhost", ".local", ".internal", ".home.arpa")
"""Endings of names that nobody can register, so that no site can point such a name at this server."""
HANDSHAKE_PARAMETER: Final = b"ws_handshake="
CHANGING_READS: Final = re.compile(r"/v1/client/(allocation/[^/]+/)?gc")
"""Paths whose GET requests delete data of ended allocations. Any page can cause a GET request, for example with a picture."""


class BrowserRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which pages may send requests without a token, and under which names browsers reach this server."""

    is_access_controlled: bool = False
    """Whether tokens are checked. Otherwise a token proves nothing, and none counts."""
    trusted_origins: frozenset[str] = frozenset()
    """Origins of other pages that may do what this server's own pages may, such as `https://dashboard.example.com`."""
    host_names: frozenset[str] = frozenset()
    """The names of this server. With any, browsers without a token must use one of them, an address or a private name."""
    own_names: frozenset[str] = frozenset()
    """Further names that are allowed, from other settings, such as that of the advertised address."""


class BrowserGate:
    """ASGI middleware in front of the pages, the rate limiter and the API. Refuses requests of foreign pages with 403.

    With a token, a foreign page may do what the token permits: it would have to know the token.
    """

    def __init__(
        self,
        app: App,
        world: World,
        rules: BrowserRules,
        *,
        extra_headers: Mapping[str, str] | None = None,
        is_nomad_compatible: bool = False,
    ) -> None:
        """`extra_headers` are added to refusals, as to all replies of this server."""
        self._app = app
        self._rules = rules
        self._extra_headers = build_extra_headers(extra_headers or {})
        self._is_nomad_compatible = is_nomad_compatible
        self._refused_pages = LogLimit(world)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            for name, _ in scope["headers"]:  # The cheapest test: a third of a microsecond for a request of a program.
                if name in BROWSER_HEADERS:
                    await self._serve_browser(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    async def _serve_browser(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request of a browser, or refuse it."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if not self._has_token(scope):
            try:
                self._check_host(headers, scope)
                if not scope["path"].startswith(PAGE_PREFIX):
                    self._check_page(headers, scope)
            except Refusal as refusal:
                self._log_refusal(headers, scope)
                await self._refuse(refusal, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _has_token(self, scope: Scope) -> bool:
        """Return whether a header has a token that access control will check."""
        if not self._rules.is_access_controlled:
            return False
        try:
            return bool(read_token(read_credentials(scope["headers"], is_nomad_compatible=self._is_nomad_compatible)))
        except Refusal:
            return False  # The headers contradict each other.

    def _check_host(self, headers: Mapping[bytes, bytes], scope: Scope) -> None:
        """Raise `Refusal` if the browser took this server for another site, whose name leads to this machine (DNS rebinding).

        Pages of that site count as pages of this server then. Without configured names, this is checked on connections
        within this machine while access control is off: other names may be right.
        """
        rules = self._rules
        if not rules.host_names and (rules.is_access_controlled or not is_loopback((scope.get("client") or ("",))[0])):
            return
        name = get_host_name(headers.get(b"host", b"").decode("latin-1"))
        if is_unregistrable_name(name) or name in rules.host_names or name in rules.own_names:
            return
        raise Refusal(
            RefusalCode.FORBIDDEN,
            f'this server has no name "{cut_echo(name)}": use its address, or add the name to `api.host_names` of this server',
            RefusalReason.FOREIGN_PAGE,
        )

    def _check_page(self, headers: Mapping[bytes, bytes], scope: Scope) -> None:
        """Raise `Refusal` if a foreign page sent the request and the page could cause harm with it.

        The origin is removed from requests of this server's own pages, because other servers that they are relayed to
        have other names.
        """
        origin = headers.get(ORIGIN_HEADER, b"").decode("latin-1").lower()
        if origin in self._rules.trusted_origins:
            return
        if is_own_page(headers):
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] not in (ORIGIN_HEADER, SITE_HEADER)]
            return
        is_websocket = scope["type"] == "websocket"
        if not is_websocket and _is_harmless(scope["method"], scope["path"], has_origin=bool(origin)):
            return
        if is_websocket and self._rules.is_access_controlled and HANDSHAKE_PARAMETER in scope["query_string"]:
            scope[NEEDS_TOKEN_KEY] = True  # The token is in the first message. The handler refuses it if it has none.
            return
        raise build_page_refusal(headers, is_access_controlled=self._rules.is_access_controlled)

    def _log_refusal(self, headers: Mapping[bytes, bytes], scope: Scope) -> None:
        """Log a refused request, once a minute. It is not in the audit log: pages could fill the disk."""
        left_out = self._refused_pages.count_event()
        if left_out is None:
            return
        origin = cut_echo(headers.get(ORIGIN_HEADER, b"").decode("latin-1"))
        host = cut_echo(headers.get(b"host", b"").decode("latin-1"))
        log.warning(
            "request of a foreign web page refused earlier_requests=%d",
            left_out,
            extra={"why": f"origin {origin!r}, host {host!r}, path {cut_echo(scope['path'])!r}"},
        )

    async def _refuse(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the refusal as an HTTP reply, also to the handshake of a websocket."""
        status, body = STATUS_BY_CODE[refusal.code], format_message(refusal.text).encode()
        headers = [*build_refusal_headers(refusal), *self._extra_headers]
        if scope["type"] == "websocket":
            await receive()  # The `websocket.connect` message.
            await refuse_handshake(send, scope, status, headers, body)
            return
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def build_page_refusal(headers: Mapping[bytes, bytes], *, is_access_controlled: bool = True) -> Refusal:
    """Return the refusal of a request that a foreign page sent without a token. `is_access_controlled`: a token would help."""
    origin = headers.get(ORIGIN_HEADER, b"").decode("latin-1")
    page = f"a page of {cut_echo(origin)}" if origin not in ("", "null") else "a page of another site"
    advice = "add the origin of the page to `api.trusted_origins` of this server"
    if is_access_controlled:
        text = f"{page} sent this request without a token: send a token in X-Cluster-Token, or {advice}"
    else:
        text = f"{page} sent this request: {advice} if it may control this cluster"
    return Refusal(RefusalCode.FORBIDDEN, text, RefusalReason.FOREIGN_PAGE)


def is_own_page(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request comes from a page of the server that it was sent to, from the user, or from no browser.

    Browsers send `Sec-Fetch-Site` over TLS and to their own machine; it is right also behind a proxy that changes `Host`.
    Otherwise, hosts and ports of `Origin` and `Host` are compared. A proxy may have changed the scheme.
    """
    site = headers.get(SITE_HEADER)
    if site is not None:
        return site in OWN_SITES
    origin = headers.get(ORIGIN_HEADER)
    if origin is None:
        return True
    try:
        sender = urlsplit(origin.decode("latin-1").lower())
    except ValueError:  # Such as an IPv6 address without its end.
        return False
    default_port = DEFAULT_PORTS.get(sender.scheme, "")
    host = headers.get(b"host", b"").decode("latin-1").lower().removesuffix(default_port)
    return bool(sender.netloc) and sender.netloc.removesuffix(default_port) == host


def _is_harmless(method: str, path: str, *, has_origin: bool) -> bool:
    """Return whether a foreign page may send this request, because it changes nothing and the page cannot read the reply.

    Browsers let pages read the replies at some paths (CORS). They send `Origin` if a page is to read the reply.
    """
    if method == "OPTIONS":
        return True  # A browser asks whether a page may send a request, which has the token.
    if method not in ("GET", "HEAD") or CHANGING_READS.fullmatch(path):
        return False
    return not (has_origin and list_cors_methods(path))


def get_host_name(host: str) -> str:
    """Return the name or the address of a `Host` header, in lower case and without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].rstrip(".").lower()


def is_unregistrable_name(name: str) -> bool:
    """Return whether nobody can register the name: an IP address, a name without a dot, or a private name."""
    if "." not in name or name.endswith(PRIVATE_SUFFIXES):
        return True
    return name.rpartition(".")[2].isdecimal()  # Browsers take such a name for an IPv4 address (URL standard, 3.5).
