"""The ASGI application of the pages. It serves what is below `/ui`, and passes everything else to the API."""

import asyncio
import gzip
import logging
import re
import shlex
from collections.abc import AsyncGenerator, Hashable, Mapping
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

from wharf.contract.client.async_client import TOKEN_HEADER, AsyncClient
from wharf.contract.client.errors import Forbidden, RequestRefused
from wharf.contract.client.flow import NO_RETRIES
from wharf.contract.client.transport import ClientRequest, Unreachable
from wharf.contract.model.refusal import RefusalReason
from wharf.web.api_transport import ApiTransport, App, LimiterRefusals, Message, PageCaller
from wharf.web.cookies import NOTICE_COOKIE, build_cookie, read_cookie
from wharf.web.forms import FormRefused, read_form
from wharf.web.page import Page, PageFunction, PageRequest, PageRouter, PageSessions, PageStream, Redirect, Visitor
from wharf.web.pages import ROUTES
from wharf.web.refusals import explain_refusal
from wharf.web.rendering import list_operations, render
from wharf.web.security import (
    INLINE_STYLE_POLICY,
    PAGE_HEADERS,
    find_foreign_sender,
    is_link_of_foreign_page,
    is_own_page,
)
from wharf.web.shared_updates import BrowserSubscription, ChangeHub, PageCache, TooManyBrowsers
from wharf.web.static_files import FOREVER, STATIC_PATH, load_static_files
from wharf.web.terminal_relay import (
    SIGNED_OUT_TEXT,
    build_exec_scope,
    refuse_open_socket,
    refuse_socket,
    relay_terminal,
)
from wharf.web.visitors import (
    SIGN_IN_FIRST_TEXT,
    build_pending_cookie,
    build_session_cookie,
    describe_visitor,
    read_pending_sign_in,
    read_session,
)
from wharf.world import World
from wharf.world.tasks import run_until_first

UI_PATH: Final = "/ui"
CHANGES_PATH: Final = "/ui/changes"
CHANGE_TOPICS: Final = (
    "Job",
    "Allocation",
    "Evaluation",
    "Deployment",
    "Node",
    "NodeDrain",
    "Service",
    "Variable",
    "HostVolume",
)
RETRY_MS: Final = 2_000
RIGHTS_CHANGED_EVENT: Final = b"event: ended\ndata: {}\n\n"
"""The last event of a stream of changes whose session has ended or has other rights."""
"""The pause after which browsers open the stream of changes again."""
MAX_QUERY_FIELDS: Final = 50
"""Limits the work of parsing the address of a page."""
COMPRESSION_LEVEL: Final = 5
"""A page of 90 kB takes 1 ms; the highest level takes four times as long and saves 3 %."""
REFRESH_HEADER: Final = b"wharf-refresh"
"""The header of an update of a page, with the log index of the newest change that the browser knows."""
NS_PER_MS: Final = 1_000_000
MAX_INDEX_DIGITS: Final = 19
FIRST_SERVER_ERROR: Final = 500
"""Statuses from here on say that the server has failed, such as 503 while it has no leader."""
MIN_COMPRESSED_BYTES: Final = 1_024
"""Smaller replies fit into one packet anyway."""
TERMINAL_SOCKET: Final = re.compile(r"/ui/allocations/([0-9A-Za-z-]{1,64})/terminal/socket")
FOREIGN_PAGE_TEXT: Final = "This request was refused: it was sent by a page of another address."
HOST_PATTERN: Final = re.compile(r"[A-Za-z0-9.:\[\]_-]{1,255}")
MENU: Final = (
    ("overview", "/ui", "Overview", "o"),
    ("jobs", "/ui/jobs", "Jobs", "j"),
    ("nodes", "/ui/nodes", "Nodes", "n"),
    ("fleet", "/ui/fleet", "Fleet", "f"),
    ("queue", "/ui/queue", "Queue", "q"),
    ("limits", "/ui/limits", "Limits", "l"),
    ("cluster", "/ui/namespaces", "Cluster", "c"),
    ("activity", "/ui/activity", "Activity", "a"),
    ("access", "/ui/access", "Access", "i"),
)
"""The entries of the menu: section, address, text, and the key that opens it after `g`."""
NOT_STORED: Final = (b"cache-control", b"no-store")
"""Pages show what only their reader may see, so no cache stores them."""

Reply = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers and body of a reply."""


class SharedUpdate(msgspec.Struct, frozen=True, eq=False):
    """An update of a page for all browsers with the same rights, unless it is about the person who asked first."""

    reply: "Reply | PageStream"
    scope: Message
    """The request that asked first."""
    is_personal: bool
    """Whether only that request gets it: its person met a limit or a ban, or has other rights or no session since."""


log = logging.getLogger(__name__)


class PageServer:
    """Serves the pages of one api process."""

    def __init__(self, world: World, api: App, sessions: PageSessions) -> None:
        self._world = world
        self._api = api
        self._sessions = sessions
        self._router = PageRouter(ROUTES)
        self._shared = PageCache[SharedUpdate](world)
        self._changes = ChangeHub(world)

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        """Serve a page, or pass the connection to the API."""
        if scope["type"] == "websocket" and (terminal := TERMINAL_SOCKET.fullmatch(scope["path"])):
            await self._serve_terminal(terminal[1], scope, receive, send)
            return
        if scope["type"] != "http" or not is_page_path(scope["path"]):
            await self._api(scope, receive, send)
            return
        headers = dict(scope["headers"])
        reply: Reply | PageStream | None
        if scope["path"] == CHANGES_PATH and scope["method"] == "GET":
            reply = await self._stream_changes(scope, headers, receive, send)
        else:
            reply = await self._answer_or_share(scope, headers, receive)
        if reply is None:
            return  # The stream has ended, or the browser has left.
        if isinstance(reply, PageStream):
            await self._send_stream(reply, receive, send)
            return
        status, reply_headers, body = reply
        await send({"type": "http.response.start", "status": status, "headers": reply_headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer_or_share(
        self, scope: Message, headers: Mapping[bytes, bytes], receive: Any
    ) -> "Reply | PageStream | None":
        """Return the complete reply; `None` if the browser leaves before a page that it reads is ready.

        An update of a page is shared with all browsers that show the same page with the same rights, and know of the same
        changes. It is not older than these changes: the index of the newest one is part of its key.
        """
        key = self._build_shared_key(scope, headers)
        if key is not None:
            return await self._share(key, scope, headers, receive)
        if scope["method"] == "POST" or scope["path"].startswith(STATIC_PATH):
            return await self._answer(scope, headers, receive)
        # A search in many logs must end when nobody waits for it.
        answering, _ = await run_until_first(
            self._world, page=self._answer(scope, headers, receive), browser=_wait_for_disconnect(receive)
        )
        return None if answering.cancelled() else answering.result()

    async def _share(
        self, key: Hashable, scope: Message, headers: Mapping[bytes, bytes], receive: Any
    ) -> "Reply | PageStream":
        """Return the update of a page with this key, which another browser may have asked for."""

        async def build() -> SharedUpdate:
            refusals = LimiterRefusals()
            reply = await self._answer(scope, headers, receive, refusals)
            # The page may have been read with rights that its person got, or without a session that ended, after the key.
            is_personal = refusals.has_any or self._build_shared_key(scope, headers) != key
            return SharedUpdate(reply, scope, is_personal)

        while True:
            update = await self._shared.get(key, build, _is_lasting)
            if update.scope is scope or not update.is_personal:
                return update.reply

    def _build_shared_key(self, scope: Message, headers: Mapping[bytes, bytes]) -> Hashable | None:
        """Return the key of an update that browsers share; `None` for other requests."""
        index = headers.get(REFRESH_HEADER, b"")
        if not index.isdigit() or len(index) > MAX_INDEX_DIGITS or int(index) == 0 or scope["method"] != "GET":
            return None
        raw_path = _get_raw_path(scope)
        route, _ = self._router.find("GET", raw_path)
        if route is None or not route.is_shared or read_cookie(headers, NOTICE_COOKIE):
            return None
        visitor = describe_visitor(scope, headers, self._sessions)
        _, rights = self._find_rights(visitor, headers)
        origin, encoding = _build_origin(headers, visitor), b"gzip" in headers.get(b"accept-encoding", b"")
        return raw_path, scope["query_string"], origin, encoding, rights, int(index)

    async def _stream_changes(
        self, scope: Message, headers: Mapping[bytes, bytes], receive: Any, send: Any
    ) -> "Reply | None":
        """Send which records change, as server-sent events, until the browser leaves or the API ends the stream.

        Return the reply if there is no stream.
        """
        visitor, token = self._identify(scope, headers)
        session, rights = self._find_rights(visitor, headers)
        topics = tuple(("topic", topic) for topic in CHANGE_TOPICS)
        request = ClientRequest("GET", "/v1/event/changes", query=(("namespace", "*"), *topics))
        try:
            subscription = await self._changes.join(rights, lambda: self._connect(scope, token).open(request))
        except TooManyBrowsers as refusal:
            return _complete(_build_error(503, "The server refused", str(refusal)), scope, headers)
        try:
            if subscription.status == 0:
                return _complete(_build_error(503, "The server did not answer", subscription.problem), scope, headers)
            if subscription.status != 200:
                text = "It does not send changes."
                return _complete(_build_error(subscription.status, "The server refused", text), scope, headers)
            start = [(b"content-type", b"text/event-stream"), NOT_STORED, *PAGE_HEADERS]
            await send({"type": "http.response.start", "status": 200, "headers": start})
            await run_until_first(
                self._world,
                page_changes=self._send_changes(subscription, session, rights, send),
                browser=_wait_for_disconnect(receive),
            )
        finally:
            await self._changes.leave(subscription)
        await send({"type": "http.response.body", "body": b""})
        return None

    async def _serve_terminal(self, alloc_id: str, scope: Message, receive: Any, send: Any) -> None:
        """Run a command in a task of an allocation, for the terminal of a page."""
        headers = dict(scope["headers"])
        visitor, token = self._identify(scope, headers)
        if not is_own_page(headers, "https" if visitor.is_secure else "http"):
            await refuse_socket(scope, receive, send, 403, FOREIGN_PAGE_TEXT)
            return
        if visitor.can_sign_in and not token:
            await refuse_open_socket(receive, send, SIGNED_OUT_TEXT)
            return
        try:
            query = dict(parse_qsl(scope["query_string"].decode("latin-1"), max_num_fields=MAX_QUERY_FIELDS))
        except ValueError:
            query = {}  # The API reports what is missing.
        exec_query = {"task": query.get("task", ""), "command": query.get("command", ""), "tty": "true"}
        exec_scope = build_exec_scope(scope, alloc_id, urlencode(exec_query), _build_credentials(token))
        session = read_session(headers, visitor)

        async def wait_until_signed_out() -> None:
            if token:
                await self._sessions.wait_until_ended(session)
            else:
                await asyncio.get_running_loop().create_future()  # Without access control nobody is signed in.

        await relay_terminal(self._world, self._api, exec_scope, receive, send, wait_until_signed_out)

    async def _send_changes(self, subscription: BrowserSubscription, session: str, rights: Hashable, send: Any) -> None:
        """Send the messages of a subscription until it ends, or the session has other rights or none.

        The browser then connects again. If the rights are the reason, it learns that: its connection is not lost.
        """

        def has_rights() -> bool:
            return not session or (True, self._sessions.find_rights_key(session)) == rights

        await send(_build_stream_part(f"retry: {RETRY_MS}\n\n".encode()))
        async with aclosing(subscription.iterate_messages()) as messages:
            async for message in messages:
                if not has_rights():
                    break
                await send(_build_stream_part(message))
        if not has_rights():
            await send(_build_stream_part(RIGHTS_CHANGED_EVENT))

    def _find_rights(self, visitor: Visitor, headers: Mapping[bytes, bytes]) -> tuple[str, Hashable]:
        """Return the secret of the browser's session, and a value that is equal for browsers with the same rights."""
        session = read_session(headers, visitor) if visitor.can_sign_in and visitor.is_protected else ""
        return session, (visitor.can_sign_in, self._sessions.find_rights_key(session))

    async def _send_stream(self, stream: PageStream, receive: Any, send: Any) -> None:
        """Send the parts of a stream until it ends or the browser leaves.

        A stream that breaks off gets no end, so that the browser reports an incomplete download.
        """
        start = [(b"content-type", stream.content_type.encode()), NOT_STORED, *PAGE_HEADERS, *stream.headers]
        await send({"type": "http.response.start", "status": 200, "headers": start})
        async with aclosing(stream.parts) as parts:
            sending, _ = await run_until_first(
                self._world, page_stream=_send_parts(parts, send), browser=_wait_for_disconnect(receive)
            )
        if sending.cancelled():
            return
        try:
            sending.result()
        except (Unreachable, RequestRefused) as problem:
            log.debug("stream of a page broke off why=%s", problem)
        else:
            await send({"type": "http.response.body", "body": b""})

    async def _answer(
        self, scope: Message, headers: Mapping[bytes, bytes], receive: Any, refusals: LimiterRefusals | None = None
    ) -> "Reply | PageStream":
        """Return the complete reply. `refusals` observes the replies of the API."""
        reply = await self._find_answer(scope, headers, receive, refusals)
        return reply if isinstance(reply, PageStream) else _complete(reply, scope, headers)

    async def _find_answer(
        self, scope: Message, headers: Mapping[bytes, bytes], receive: Any, refusals: LimiterRefusals | None
    ) -> "Reply | PageStream":
        """Return status, headers and body of the reply."""
        if scope["path"].startswith(STATIC_PATH):
            return _serve_static_file(scope["path"])
        foreign = find_foreign_sender(scope["method"], headers, scope.get("scheme", "http"))
        if foreign:
            return _build_error(403, "This request was refused", f"It changes something, and {foreign}.")
        raw_path = _get_raw_path(scope)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        route, path_values = self._router.find(method, raw_path)
        if route is None:
            return _build_error(404, "There is no such page", f"The address {unquote(raw_path)[:200]} is not a page.")
        try:
            query = dict(parse_qsl(scope["query_string"].decode("latin-1"), max_num_fields=MAX_QUERY_FIELDS))
        except ValueError:
            return _build_error(400, "The address is not valid", f"It has more than {MAX_QUERY_FIELDS} parameters.")
        try:
            form = await read_form(headers, receive) if method == "POST" else {}
        except FormRefused as refused:
            return _build_error(refused.status, "The form was not accepted", str(refused))
        visitor, token = self._identify(scope, headers)
        origin = _build_origin(headers, visitor)
        request = PageRequest(
            client=self._build_client(scope, token, refusals),
            path=raw_path,
            query=query,
            path_values=path_values,
            form=form,
            now_ns=self._world.now_ns(),
            visitor=visitor,
            is_from_foreign_page=is_link_of_foreign_page(headers),
            connect=lambda token: self._build_client(scope, token, refusals),
            world=self._world,
            origin=origin,
            pending_sign_in=read_pending_sign_in(headers, visitor),
            providers=lambda: self._sessions.list_providers(origin),
        )
        return await self._serve_page(route.serve, request, scope, headers)

    async def _serve_page(
        self, serve: PageFunction, request: PageRequest, scope: Message, headers: Mapping[bytes, bytes]
    ) -> "Reply | PageStream":
        """Return the reply of a page function. Refusals of the API become pages that show their text."""
        notice = read_cookie(headers, NOTICE_COOKIE)
        index = self._sessions.state_index
        try:
            page = await serve(request)
            if isinstance(page, Page):
                allowed = await _find_allowed(request, page)
                body = render_page(
                    page,
                    index=index,
                    notice=notice,
                    origin=request.origin,
                    visitor=request.visitor,
                    allowed=allowed,
                    now_ms=request.now_ns // NS_PER_MS,
                )
        except RequestRefused as refusal:
            visitor = request.visitor
            is_missing_sign_in = isinstance(refusal, Forbidden) and not refusal.is_by_limiter
            if is_missing_sign_in and visitor.can_sign_in and not visitor.is_signed_in:
                return _build_redirect(_lead_to_sign_in(request, scope, headers), visitor)
            title = describe_refusal(refusal)
            return _build_error(
                refusal.status, title, _explain_refusal(refusal, visitor), visitor, _offer_form(request)
            )
        except FormRefused as refused:
            title = "The form was not accepted"
            return _build_error(refused.status, title, str(refused), request.visitor, _offer_form(request))
        except Unreachable as problem:
            return _build_error(503, "The server did not answer", str(problem), request.visitor)
        except Exception:  # Last resort: the browser must get a reply.
            log.exception("page failed path=%s", request.path)
            return _build_error(500, "This page failed", "The reason is in the log of the server.", request.visitor)
        if isinstance(page, Redirect):
            return _build_redirect(page, request.visitor)
        if isinstance(page, PageStream):
            return page
        reply_headers = [HTML, NOT_STORED, *([build_cookie(NOTICE_COOKIE, "")] if notice else [])]
        if page.has_inline_styles:
            reply_headers.append((b"content-security-policy", INLINE_STYLE_POLICY.encode()))
        return page.status, reply_headers, body

    def _identify(self, scope: Message, headers: Mapping[bytes, bytes]) -> tuple[Visitor, str]:
        """Return what is known of the browser, and the token with which it is signed in; empty if it is not."""
        visitor = describe_visitor(scope, headers, self._sessions)
        if not visitor.can_sign_in or not visitor.is_protected:
            return visitor, ""
        session = read_session(headers, visitor)
        token = self._sessions.find_token_secret(session) if session else ""
        if not token:
            return visitor, ""
        return msgspec.structs.replace(visitor, session_id=self._sessions.find_session_id(session)), token

    def _build_client(self, scope: Message, token: str, refusals: LimiterRefusals | None) -> AsyncClient:
        """Return a client of the API that authenticates with this token."""
        return AsyncClient(self._world, (self._connect(scope, token, refusals),), retry_policy=NO_RETRIES)

    def _connect(self, scope: Message, token: str, refusals: LimiterRefusals | None = None) -> ApiTransport:
        """Return a connection to the API that authenticates with this token."""
        caller = PageCaller(
            headers=tuple(_build_credentials(token)),
            address=scope.get("client"),
            scheme=scope.get("scheme", "http"),
        )
        return ApiTransport(self._world, self._api, caller, refusals)


HTML: Final = (b"content-type", b"text/html; charset=utf-8")


def _build_credentials(token: str) -> list[tuple[bytes, bytes]]:
    """Return the header with which a request of a page authenticates; none without a token."""
    return [(TOKEN_HEADER.encode(), token.encode("latin-1", "replace"))] if token else []


def _complete(reply: Reply, scope: Message, headers: Mapping[bytes, bytes]) -> Reply:
    """Return a reply with the headers of all pages, compressed if the browser accepts that."""
    status, reply_headers, body = reply
    if len(body) >= MIN_COMPRESSED_BYTES and b"gzip" in headers.get(b"accept-encoding", b""):
        file = load_static_files().find(scope["path"])  # Files are compressed once, and better than pages.
        body = gzip.compress(body, COMPRESSION_LEVEL, mtime=0) if file is None else file.compressed
        reply_headers.append((b"content-encoding", b"gzip"))
    has_policy = any(name == b"content-security-policy" for name, _ in reply_headers)
    reply_headers += [
        *PAGE_HEADERS[1 if has_policy else 0 :],
        (b"vary", b"Accept-Encoding"),
        (b"content-length", b"%d" % len(body)),
    ]
    return status, reply_headers, body


def _build_stream_part(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}


def _is_lasting(update: SharedUpdate) -> bool:
    """Return whether browsers that ask later get an update too: not if the server was overloaded or starting, or if the update is
    about one person.
    """
    reply = update.reply
    return not update.is_personal and (isinstance(reply, PageStream) or reply[0] < FIRST_SERVER_ERROR)


async def _send_parts(parts: AsyncGenerator[bytes, None], send: Any) -> None:
    """Send the parts of a stream. Raises what breaks it off."""
    async for part in parts:
        await send(_build_stream_part(part))


async def _wait_for_disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def is_page_path(path: str) -> bool:
    return path == UI_PATH or path.startswith(UI_PATH + "/")


def _serve_static_file(path: str) -> Reply:
    file = load_static_files().find(path)
    if file is None:
        return _build_error(
            404, "There is no such file", "The page that named it is older than the server: load it again."
        )
    headers = [(b"content-type", file.content_type.encode()), (b"cache-control", FOREVER)]
    return 200, headers, file.content


class SentForm(msgspec.Struct, frozen=True):
    """A form that was refused, to be corrected and sent again."""

    url: str
    fields: tuple[tuple[str, str], ...]
    hidden_fields: tuple[tuple[str, str], ...]


class ErrorView(msgspec.Struct, frozen=True):
    """A page that says what is wrong."""

    title: str
    text: str
    form: SentForm | None = None


def _build_error(
    status: int, title: str, text: str, visitor: Visitor | None = None, form: SentForm | None = None
) -> Reply:
    """Return the reply with a page that says what is wrong. `visitor`: who can sign in or out there, if it is known."""
    page = Page("error.html", title, ErrorView(title, text, form), status=status)
    return status, [HTML, NOT_STORED], render_page(page, notice="", origin="", visitor=visitor or Visitor())


TITLE_BY_STATUS: Final = {
    400: "The server did not accept this",
    403: "You may not do this",
    404: "Not found",
    409: "It has changed in the meantime",
    429: "Too many requests",
    503: "The server cannot do this now",
}
NO_NODE_TITLE: Final = "The node cannot be reached"
BANNED_TITLE: Final = "Your requests are refused for now"


def describe_refusal(refusal: RequestRefused) -> str:
    """Return the title of the page about a refusal."""
    if refusal.is_by_limiter and isinstance(refusal, Forbidden):
        return BANNED_TITLE
    if refusal.reason is RefusalReason.NO_NODE_PATH:
        return NO_NODE_TITLE
    return TITLE_BY_STATUS.get(refusal.status, "The server refused")


def _offer_form(request: PageRequest) -> SentForm | None:
    """Return the form of a refused request, so that a person corrects it and enters nothing again; `None` for the others.

    Forms with secrets are left out, and those with a page of their own for mistakes.
    """
    if not request.form or any(request.path.startswith(path) for path in FORMS_NOT_OFFERED):
        return None
    query = f"?{urlencode(request.query)}" if request.query else ""
    shown = tuple((name, value) for name, value in request.form.items() if name not in HIDDEN_FIELDS)
    hidden = tuple((name, value) for name, value in request.form.items() if name in HIDDEN_FIELDS)
    return SentForm(request.path + query, shown, hidden) if shown else None


FORMS_NOT_OFFERED: Final = ("/ui/sign-in", "/ui/variables", "/ui/run")
HIDDEN_FIELDS: Final = frozenset(
    ("confirmed", "once", "index", "current", "deployment", "group", "eligible", "cancel", "step", "answer")
)
"""Fields that people do not fill in. A group, a deployment, or the answer to a gate is chosen by the button."""


def _lead_to_sign_in(request: PageRequest, scope: Message, headers: Mapping[bytes, bytes]) -> Redirect:
    """Return the way to the sign-in, which says why, and leads back: after a form, to the page of the form."""
    if scope["method"] != "POST":
        return Redirect(f"/ui/sign-in?{urlencode({'next': _get_target(scope)})}", SIGN_IN_FIRST_TEXT)
    sender = urlsplit(headers.get(b"referer", b"").decode("latin-1"))
    is_own = bool(request.origin) and f"{sender.scheme}://{sender.netloc}" == request.origin
    page = f"{sender.path}?{sender.query}" if sender.query else sender.path
    return Redirect(f"/ui/sign-in?{urlencode({'next': page if is_own else UI_PATH})}", NOTHING_DONE_TEXT)


NOTHING_DONE_TEXT: Final = (
    "You are not signed in, or your session has ended, so nothing was changed. Sign in, and send the form again."
)


def _explain_refusal(refusal: RequestRefused, visitor: Visitor) -> str:
    """Return why a person was refused: which right is missing, if the API names it, and where the person's rights are."""
    text = explain_refusal(refusal)
    if text == refusal.text:
        return text
    text = f"{text[0].upper()}{text[1:]}."
    is_advised = visitor.is_signed_in and isinstance(refusal, Forbidden)
    return f"{text} The page Access shows what you may do." if is_advised else text


async def _find_allowed(request: PageRequest, page: Page) -> frozenset[str]:
    """Return which of the endpoints behind the forms of a page the person may use. The API knows, so nothing is decided here."""
    operations = list_operations(page.template)
    if not operations or not request.visitor.can_sign_in:
        return frozenset(operations)
    namespace = page.namespace or request.namespace
    checked = await request.client.acl.check(
        operations, path=page.rights_path, anywhere=page.has_rights_anywhere, namespace=namespace, stale=True
    )
    return frozenset(checked.value.allowed)


def _build_redirect(redirect: Redirect, visitor: Visitor) -> Reply:
    cookies = [build_cookie(NOTICE_COOKIE, redirect.notice)] if redirect.notice else []
    if redirect.session is not None:
        cookies.append(build_session_cookie(redirect.session, visitor))
    if redirect.pending_sign_in is not None:
        cookies.append(build_pending_cookie(redirect.pending_sign_in, visitor))
    return 303, [(b"location", redirect.location.encode("ascii")), *cookies, NOT_STORED], b""


def _get_raw_path(scope: Message) -> str:
    """Return the path of a request as it was sent, so that a name may contain `%2F`."""
    raw_path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return raw_path.partition(b"?")[0].decode("latin-1")


def _get_target(scope: Message) -> str:
    """Return the address of a request, to come back to after signing in."""
    query = scope["query_string"].decode("latin-1")
    return quote(scope["path"]) + (f"?{query}" if query else "")


def render_page(
    page: Page,
    *,
    index: int = 0,
    notice: str,
    origin: str,
    visitor: Visitor,
    allowed: frozenset[str] = frozenset(),
    now_ms: int = 0,
) -> bytes:
    """Return the HTML of a page, with the forms of the endpoints in `allowed`. It shows the state at a log index, or a newer one."""
    return render(
        page.template,
        page=page,
        view=page.view,
        index=index,
        notice=notice,
        origin=origin,
        menu=MENU,
        visitor=visitor,
        now_ms=now_ms,
        curl=_build_curl(page, origin, visitor),
        may=allowed.__contains__,
    ).encode()


def _build_curl(page: Page, origin: str, visitor: Visitor) -> str:
    """Return the command that sends the page's request of the API; empty if there is none. The token is that of commands."""
    if not page.api_path:
        return ""
    token = f' -H "{TOKEN_HEADER}: $WHARF_TOKEN"' if visitor.can_sign_in else ""
    return f"curl{token} {shlex.quote(origin + page.api_path)}"


def _build_origin(headers: Mapping[bytes, bytes], visitor: Visitor) -> str:
    """Return the address under which the browser reached this server, or the proxy in front of it."""
    host = headers.get(b"host", b"").decode("latin-1")
    return f"{'https' if visitor.is_secure else 'http'}://{host}" if HOST_PATTERN.fullmatch(host) else ""
