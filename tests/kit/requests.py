"""Requests with JSON bodies, and replies with decoded bodies."""

import json
from typing import Any

from tests.kit.cluster import OneServer
from tests.kit.exchange import send_raw
from wharf.contract.client import ClientReply
from wharf.contract.model.log import Cause, CauseKind, Write

DENIED = (403, "Permission denied")


async def get(server: OneServer, path: str, query: str = "", **options: Any) -> ClientReply:
    return await send_raw(server.api, "GET", path, query=query, **options)


async def put(server: OneServer, path: str, body: object = None, query: str = "", **options: Any) -> ClientReply:
    return await send(server, "PUT", path, body, query, **options)


async def send(
    server: OneServer, method: str, path: str, body: object = None, query: str = "", **options: Any
) -> ClientReply:
    data = b"" if body is None else json.dumps(body).encode()
    return await send_raw(server.api, method, path, query=query, body=data, **options)


async def delete(server: OneServer, path: str, query: str = "", **options: Any) -> ClientReply:
    return await send_raw(server.api, "DELETE", path, query=query, **options)


def status_and_text(reply: ClientReply) -> tuple[int, str]:
    return reply.status, reply.body.decode()


def read(reply: ClientReply) -> Any:
    assert reply.status == 200, status_and_text(reply)
    return json.loads(reply.body)


async def commit(server: OneServer, *changes: Any) -> int:
    """Commit records without validation, wait until the server's replica has them, and return the index."""
    outcome = await server.server.writer.commit(Write("test", Cause(CauseKind.REQUEST, "test"), changes))
    index: int = outcome.index  # type: ignore[union-attr]  # without conditions there is no conflict
    await server.server.writer.wait_until_visible(index)
    return index
