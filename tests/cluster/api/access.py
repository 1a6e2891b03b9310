"""Callers of the HTTP API for tests of access control: a server with access control on, its first token, further tokens."""

import json
from typing import Any

from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from wharf.contract.client import ClientReply

UNKNOWN_SECRET = "7c1d0c2e-0a6a-4a31-9c55-5b8f24a1de01"


class ApiCaller:
    """A caller of one server, with or without a token."""

    def __init__(self, server: OneServer, token: str = "", *, accessor: str = "") -> None:
        self.server = server
        self.token = token
        self.accessor = accessor

    async def send_raw(self, method: str, path: str, body: object = None, *, query: str = "") -> ClientReply:
        headers = {"X-Cluster-Token": self.token} if self.token else {}
        sent = b"" if body is None else json.dumps(body).encode()
        return await send_raw(self.server.api, method, path, query=query, headers=headers, body=sent)

    async def get(self, path: str, query: str = "") -> tuple[int, Any]:
        return status_and_json(await self.send_raw("GET", path, query=query))

    async def put(self, path: str, body: object = None, query: str = "") -> tuple[int, Any]:
        return status_and_json(await self.send_raw("PUT", path, body, query=query))

    async def delete(self, path: str, query: str = "") -> tuple[int, Any]:
        return status_and_json(await self.send_raw("DELETE", path, query=query))

    # -- objects

    async def policy(self, name: str, rules: str) -> None:
        reply = await self.send_raw("PUT", f"/v1/acl/policy/{name}", {"Name": name, "Rules": rules})
        assert reply.status == 200, reply.body

    async def a_token(self, *policies: str, **fields: Any) -> "ApiCaller":
        """Create a client token with these policies, and return a caller with it."""
        body = {"Name": "test", "Type": "client", "Policies": list(policies), **fields}
        _, created = await self.put("/v1/acl/token", body)
        return ApiCaller(self.server, created["SecretID"], accessor=created["AccessorID"])


def status_and_json(reply: ClientReply) -> tuple[int, Any]:
    """Return the status and the body: decoded if it is JSON, else as text."""
    is_json = reply.headers.get("content-type", "").startswith("application/json")
    return reply.status, json.loads(reply.body) if is_json else reply.body.decode()


async def an_operator(cluster: ACluster, name: str = "m1", **options: Any) -> ApiCaller:
    """Start a server with access control on, and return a caller with its first token. `options` are those of `a_server`."""
    server = await cluster.a_server(name, access=True, **options)
    status, token = await ApiCaller(server).put("/v1/acl/bootstrap")
    assert status == 200, token
    return ApiCaller(server, token["SecretID"], accessor=token["AccessorID"])
