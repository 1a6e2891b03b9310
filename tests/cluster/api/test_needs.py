"""Every endpoint refuses whoever lacks what it needs: the whole table, one row after the other."""

from collections.abc import Iterator

import pytest

from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import ask
from tests.kit.virtual_time import in_virtual_time
from wharf.contract.model.acl.permissions import AnyToken, PublicAccess
from wharf.contract.wire.endpoint_table import ENDPOINTS, Endpoint, EndpointKind

ID = "6f1c1d3e-1d0a-4a8e-9f3e-1b2c3d4e5f60"
UNKNOWN_TOKEN = {"x-cluster-token": ID}

OPEN_TO_ALL = {
    "status.leader", "status.peers", "agent.health", "metrics.read", "region.list",
    # Whoever asks has no token yet, or shows another proof.
    "acl.bootstrap", "acl.oidc.auth-url", "acl.oidc.complete", "acl.login", "acl.token.exchange", "acl.method.list",
    "identity.keys", "identity.issuer",
    "node.register", "node.heartbeat", "node.desired", "node.fetch", "node.report", "node.channel", "server.ask",
    "node.identities", "node.own_identity", "node.former", "node.leave", "client.snapshot",
    # What describes the API holds nothing of the cluster.
    "document.openapi", "document.page",
}  # fmt: skip
"""Endpoints that ask nobody who they are. A new one is put here after thinking about it."""


def path_of(endpoint: Endpoint) -> str:
    path = endpoint.path
    while "{" in path:
        beginning, _, rest = path.partition("{")
        path = beginning + ID + rest.partition("}")[2]
    return path


def guarded() -> Iterator[Endpoint]:
    return (e for e in ENDPOINTS if not isinstance(e.need, PublicAccess | AnyToken) and not e.unsupported_reason)


async def all_refused(server: OneServer, headers: dict[str, str], *, query: str) -> set[str]:
    """The endpoints that let somebody in who has these headers."""
    let_in = set()
    for endpoint in guarded():
        reply = await ask(server.api, endpoint.method, path_of(endpoint), query=query, headers=headers, body=b"{}")
        if reply.status != 403:
            let_in.add(f"{endpoint.name}: {reply.status} {reply.body[:80]!r}")
    return let_in


@pytest.mark.parametrize("query", ["", "namespace=*", "stale"])
def test_every_endpoint_refuses_whoever_has_no_right(query: str) -> None:
    @in_virtual_time
    async def story() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            enable_acl(server)
            without_rights = await a_token(server, 'namespace "nowhere-at-all" { policy = "deny" }')

            assert await all_refused(server, {}, query=query) == set()
            assert await all_refused(server, UNKNOWN_TOKEN, query=query) == set()
            assert await all_refused(server, without_rights, query=query) == set()

    story()


@in_virtual_time
async def test_what_is_open_to_every_token_is_closed_to_one_that_does_not_hold() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        let_in = set()
        for endpoint in ENDPOINTS:
            if isinstance(endpoint.need, AnyToken) and not endpoint.unsupported_reason:
                reply = await ask(server.api, endpoint.method, path_of(endpoint), headers=UNKNOWN_TOKEN, body=b"{}")
                if reply.status != 403:
                    let_in.add(f"{endpoint.name}: {reply.status} {reply.body[:80]!r}")

        assert let_in == set()


def test_endpoints_that_ask_nobody_are_those_that_were_thought_about() -> None:
    open_rows = {e.name for e in ENDPOINTS if isinstance(e.need, PublicAccess) and not e.unsupported_reason}

    assert open_rows == OPEN_TO_ALL


def test_what_writes_is_open_to_nobody_but_nodes_and_those_who_log_in() -> None:
    writing = {
        e.name
        for e in ENDPOINTS
        if e.kind in (EndpointKind.WRITE, EndpointKind.LEADER_WRITE) and isinstance(e.need, PublicAccess)
    }

    assert writing <= OPEN_TO_ALL


@in_virtual_time
async def test_a_refused_write_changes_nothing() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        index = server.replica.index

        await all_refused(server, UNKNOWN_TOKEN, query="")

        assert server.replica.index == index
