"""A client for tests of endpoints: sends one request in one line and decodes the reply."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from tests.kit.cluster import OneServer
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import pass_time
from wharf.contract.client import ClientReply

SETTLED_S = 0.1


class ApiClient:
    """Sends requests to one server, always as the same caller."""

    def __init__(self, server: OneServer, headers: Mapping[str, str] | None = None) -> None:
        self._server = server
        self._headers = headers or {}

    async def raw(self, method: str, path: str, body: Any = b"", **query: Any) -> ClientReply:
        """Send the request. A body that is not bytes is encoded as JSON."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers = {**self._headers, **({"content-length": str(len(data))} if data else {})}
        return await send_raw(self._server.api, method, path, query=urlencode(query), headers=headers, body=data)

    async def get(self, path: str, **query: Any) -> Any:
        """Return the decoded body of a successful read."""
        return _read(await self.raw("GET", path, **query))

    async def put(self, path: str, body: Any = b"", **query: Any) -> Any:
        return _read(await self.raw("PUT", path, body, **query))

    async def delete(self, path: str, **query: Any) -> Any:
        return _read(await self.raw("DELETE", path, **query))

    async def refusal(self, method: str, path: str, body: Any = b"", **query: Any) -> tuple[int, str]:
        """Return status and text of a refused request, after checking that it changed nothing."""
        await pass_time(SETTLED_S)  # Effects of earlier requests must be finished.
        index = self._server.replica.index
        reply = await self.raw(method, path, body, **query)
        assert self._server.replica.index == index, "a refused request has changed something"
        return reply.status, reply.body.decode()


def _read(reply: ClientReply) -> Any:
    assert reply.status == 200, (reply.status, reply.body)
    return json.loads(reply.body) if reply.body else None
