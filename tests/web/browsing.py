"""A person who looks at the pages of a server in memory, with the cookies that a browser keeps."""

import asyncio
from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import Any, Final
from urllib.parse import urlencode

from tests.cluster.api.test_websocket_relay import WebSocketCaller
from tests.kit.cluster import ACluster, OneServer
from wharf.cluster.api.handlers.acl.sessions import SessionFinder
from wharf.cluster.server.security.access_services import AccessSettings
from wharf.contract.model.times import HOUR
from wharf.web.app import PageServer
from wharf.web.static_files import load_static_files

LOCAL_HOST = "127.0.0.1:4646"
CONFIRMED: Final = {"confirmed": "yes"}
"""The field that the script of the pages adds to a form after its question."""
SESSION_TTL_NS = 5 * HOUR


class ShownPage:
    """A reply for a browser."""

    def __init__(
        self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, *, is_complete: bool = True
    ) -> None:
        self.status = status
        self.is_complete = is_complete
        """Whether the end of the body was sent. A browser reports the download of an incomplete one as failed."""
        self.headers = headers
        self.text = body.decode()

    def get_header(self, name: str) -> str:
        return next((value.decode() for key, value in self.headers if key == name.encode()), "")

    @property
    def cookies(self) -> list[str]:
        return [value.decode() for name, value in self.headers if name == b"set-cookie"]


class Browser:
    """Sends requests to the pages. Redirects are not followed."""

    def __init__(self, pages: Any, *, host: str = LOCAL_HOST, address: str = "127.0.0.1", scheme: str = "http") -> None:
        self._pages = pages
        self.host = host
        self.address = address
        self.scheme = scheme
        self.cookies: dict[str, str] = {}
        self.leaves = asyncio.Event()
        """Whether the person closes the page before the reply is there."""

    def open_socket(self, path: str, query: str = "", *, headers: Mapping[str, str] | None = None) -> WebSocketCaller:
        """Open a websocket as a page of this server does. `headers` replace those of such a page."""
        sent = {"host": self.host, "origin": f"{self.scheme}://{self.host}", **(headers or {})}
        if self.cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            scheme = "wss" if self.scheme == "https" else "ws"
            await self._pages({**scope, "scheme": scheme, "client": (self.address, 50_000)}, receive, send)

        raw = [(name.encode(), value.encode()) for name, value in sent.items() if value]
        return WebSocketCaller(serve, path, query, headers=raw)

    async def get(self, path: str, **headers: str) -> ShownPage:
        return await self.send("GET", path, headers=headers)

    async def post(
        self, path: str, fields: Mapping[str, str] | None = None, *, headers: Mapping[str, str] | None = None
    ) -> ShownPage:
        """Send a form, as a page of this server does."""
        sent = {"origin": f"{self.scheme}://{self.host}", **(headers or {})}
        return await self.send("POST", path, headers=sent, body=urlencode(fields or {}).encode())

    async def send(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> ShownPage:
        """Send a request and keep the cookies of its reply."""
        target, _, query = path.partition("?")
        sent = {"host": self.host, **(headers or {})}
        if self.cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if method == "POST":
            sent.setdefault("content-type", "application/x-www-form-urlencoded")
        replies: list[Any] = []

        is_sent = False

        async def receive() -> dict[str, Any]:
            nonlocal is_sent
            if is_sent:
                await self.leaves.wait()
                return {"type": "http.disconnect"}
            is_sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def collect(message: Any) -> None:
            replies.append(message)

        scope = {
            "type": "http",
            "method": method,
            "scheme": self.scheme,
            "path": target,
            "raw_path": target.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in sent.items()],
            "client": (self.address, 50_000),
        }
        async with asyncio.timeout(60):
            await self._pages(scope, receive, collect)
        if not replies:
            return ShownPage(0, [], b"", is_complete=False)
        page = ShownPage(
            replies[0]["status"],
            replies[0]["headers"],
            b"".join(each.get("body", b"") for each in replies[1:]),
            is_complete=not replies[-1].get("more_body", False),
        )
        for cookie in page.cookies:
            for name, morsel in SimpleCookie(cookie).items():
                if morsel["max-age"] == "0":
                    self.cookies.pop(name, None)
                else:
                    self.cookies[name] = morsel.value
        return page


def a_browser(server: OneServer, **options: Any) -> Browser:
    """Return a browser of a person who is not signed in."""
    load_static_files()  # Read outside of the event loop of the test.
    return Browser(PageServer(server.world, server.api, SessionFinder(server.server)), **options)


async def a_server_with_access(cluster: ACluster) -> tuple[OneServer, str]:
    """Start a server with access control on. Return it with the secret of its first token."""
    server = await cluster.a_server("m1", access=True)
    return server, await enable_access(server)


async def enable_access(server: OneServer) -> str:
    """Turn access control on for pages and the API, and return the secret of the first token."""
    server.server.access.apply_settings(AccessSettings(is_enabled=True, page_session_ttl_ns=SESSION_TTL_NS))
    server.api = server.exchange.api = server.build_api()
    return (await server.client.acl.bootstrap()).secret_id
