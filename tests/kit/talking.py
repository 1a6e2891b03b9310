"""Small words for tests of endpoints: a request is one line, its reply is read."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from tests.kit.cluster import OneServer
from tests.kit.exchange import ask
from tests.kit.virtual_time import pass_time
from wharf.contract.client import ClientReply

SETTLED_S = 0.1


class Talk:
    """Talks to one server, always as the same caller."""

    def __init__(self, server: OneServer, headers: Mapping[str, str] | None = None) -> None:
        self._server = server
        self._headers = headers or {}

    async def raw(self, method: str, path: str, body: Any = b"", **query: Any) -> ClientReply:
        """`body`: bytes as they are, anything else as JSON."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers = {**self._headers, **({"content-length": str(len(data))} if data else {})}
        return await ask(self._server.api, method, path, query=urlencode(query), headers=headers, body=data)

    async def get(self, path: str, **query: Any) -> Any:
        """What a read answers; it must succeed."""
        return _read(await self.raw("GET", path, **query))

    async def put(self, path: str, body: Any = b"", **query: Any) -> Any:
        return _read(await self.raw("PUT", path, body, **query))

    async def delete(self, path: str, **query: Any) -> Any:
        return _read(await self.raw("DELETE", path, **query))

    async def refusal(self, method: str, path: str, body: Any = b"", **query: Any) -> tuple[int, str]:
        """Status and sentence; and nothing has changed."""
        await pass_time(SETTLED_S)  # What follows from earlier requests is no change of this one's.
        index = self._server.replica.index
        reply = await self.raw(method, path, body, **query)
        assert self._server.replica.index == index, "a refused request has changed something"
        return reply.status, reply.body.decode()


def _read(reply: ClientReply) -> Any:
    assert reply.status == 200, (reply.status, reply.body)
    return json.loads(reply.body) if reply.body else None
