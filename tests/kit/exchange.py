"""The client's port over a call in memory: a request goes straight into the ASGI application."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from wharf.api.app import Api
from wharf.client import Reply, Unreachable


class InMemory:
    """`is_away` plays a server that does not answer. Every request is kept in `sent`, as (method, path, body)."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.is_away = False
        self.sent: list[tuple[str, str, bytes]] = []
        self.replies: list[Reply] = []

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
        timeout_s: float,
    ) -> Reply:
        if self.is_away:
            raise Unreachable("nobody answers", sent=False)
        self.sent.append((method, path, body))
        try:
            async with asyncio.timeout(timeout_s):
                reply = await ask(self.api, method, path, query=urlencode(query), headers=headers, body=body)
        except TimeoutError as error:
            raise Unreachable(f"no reply within {timeout_s} s", sent=True) from error
        self.replies.append(reply)
        return reply

    async def close(self) -> None:
        return


async def ask(
    api: Api,
    method: str,
    path: str,
    *,
    query: str = "",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    gone: asyncio.Event | None = None,
) -> Reply:
    """One raw request. `gone`: when it is set, the caller has hung up."""
    sent: list[Any] = []
    gone = gone or asyncio.Event()
    is_read = False

    async def receive() -> Any:
        nonlocal is_read
        if not is_read:
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        "client": ("127.0.0.1", 40_000),
    }
    await api(scope, receive, send)
    start, *parts = sent
    body_sent = b"".join(part["body"] for part in parts)
    return Reply(start["status"], {n.decode(): v.decode() for n, v in start["headers"]}, body_sent)
