"""Every endpoint refuses callers without the required permission: checks the whole endpoint table."""

from collections.abc import Iterator

import pytest

from tests.cluster.api.access import an_operator
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time
from wharf.contract.client import ClientReply
from wharf.contract.model.acl.permissions import AnyToken, PublicAccess
from wharf.contract.model.refusal import PERMISSION_DENIED
from wharf.contract.wire.endpoint_table import ENDPOINTS, Endpoint, EndpointKind
from wharf.contract.wire.errors import DETAIL_HEADER

ID = "6f1c1d3e-1d0a-4a8e-9f3e-1b2c3d4e5f60"
UNKNOWN_TOKEN = {"x-cluster-token": ID}

PUBLIC_ENDPOINTS = {
    "status.leader", "status.peers", "agent.health", "metrics.read", "region.list",
    # The caller has no token yet, or authenticates in another way.
    "acl.bootstrap", "acl.oidc.auth-url", "acl.oidc.complete", "acl.login", "acl.token.exchange", "acl.method.list",
    "identity.keys", "identity.issuer",
    "node.register", "node.heartbeat", "node.desired", "node.fetch", "node.report", "node.channel", "server.ask",
    "node.identities", "node.own_identity", "node.former", "node.leave", "client.snapshot",
    # The API documents contain no data of the cluster.
    "document.job_schema", "document.openapi", "document.page",
}  # fmt: skip
"""Endpoints without authentication. Think about the risk before you add one."""


ENDLESS_ENDPOINTS = {"event.changes", "node.channel"}
"""Endpoints that refuse no token, and whose replies do not end by themselves."""


def build_path(endpoint: Endpoint) -> str:
    path = endpoint.path
    while "{" in path:
        expected_start, _, rest = path.partition("{")
        path = expected_start + ID + rest.partition("}")[2]
    return path


def iterate_guarded() -> Iterator[Endpoint]:
    return (e for e in ENDPOINTS if not isinstance(e.need, PublicAccess | AnyToken) and not e.unsupported_reason)


async def list_not_refused(server: OneServer, headers: dict[str, str], *, query: str) -> set[str]:
    """Return the endpoints that do not refuse a caller with these headers, or do not say what it lacks."""
    accepted = set()
    for endpoint in iterate_guarded():
        reply = await send_raw(
            server.api, endpoint.method, build_path(endpoint), query=query, headers=headers, body=b"{}"
        )
        if reply.status != 403:
            accepted.add(f"{endpoint.name}: {reply.status} {reply.body[:80]!r}")
        elif not is_explained(reply):
            accepted.add(f"{endpoint.name}: {reply.body!r} without an explanation")
    return accepted


def is_explained(reply: ClientReply) -> bool:
    """Return whether a denial says what is missing: in its detail, or in a text that is not only Nomad's."""
    return bool(reply.headers.get(DETAIL_HEADER)) or reply.body != PERMISSION_DENIED.encode()


@pytest.mark.parametrize("query", ["", "namespace=*", "stale"])
def test_every_endpoint_refuses_callers_without_rights(query: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            enable_acl(server)
            powerless_token = await a_token(server, 'namespace "nowhere-at-all" { policy = "deny" }')

            assert await list_not_refused(server, {}, query=query) == set()
            assert await list_not_refused(server, UNKNOWN_TOKEN, query=query) == set()
            assert await list_not_refused(server, powerless_token, query=query) == set()

    run()


@in_virtual_time
async def test_endpoints_for_any_token_refuse_an_unknown_token() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        accepted = set()
        for endpoint in ENDPOINTS:
            if isinstance(endpoint.need, AnyToken) and not endpoint.unsupported_reason:
                reply = await send_raw(
                    server.api, endpoint.method, build_path(endpoint), headers=UNKNOWN_TOKEN, body=b"{}"
                )
                if reply.status != 403:
                    accepted.add(f"{endpoint.name}: {reply.status} {reply.body[:80]!r}")

        assert accepted == set()


@in_virtual_time
async def test_every_denial_of_a_weak_token_and_of_a_public_endpoint_says_what_is_missing() -> None:
    """The token may read one namespace, so that most denials depend on the requested object, and come from handlers."""
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("weak", 'namespace "apps" { policy = "read" }')
        weak = await operator.a_token("weak")
        unexplained: set[str] = set()
        explained: set[str] = set()
        for endpoint in ENDPOINTS:
            if endpoint.name in ENDLESS_ENDPOINTS:
                continue
            reply = await weak.send_raw(endpoint.method, build_path(endpoint), {})
            if reply.status == 403:
                (explained if is_explained(reply) else unexplained).add(endpoint.name)

    assert unexplained == set()
    assert {"acl.token.read", "acl.policy.read", "acl.role.read", "event.stream", "server.ask"} <= explained


def test_the_public_endpoints_are_a_known_list() -> None:
    open_rows = {e.name for e in ENDPOINTS if isinstance(e.need, PublicAccess) and not e.unsupported_reason}

    assert open_rows == PUBLIC_ENDPOINTS


def test_only_nodes_and_logins_have_public_write_endpoints() -> None:
    writing = {
        e.name
        for e in ENDPOINTS
        if e.kind in (EndpointKind.WRITE, EndpointKind.LEADER_WRITE) and isinstance(e.need, PublicAccess)
    }

    assert writing <= PUBLIC_ENDPOINTS


@in_virtual_time
async def test_a_refused_write_changes_nothing() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        index = server.replica.index

        await list_not_refused(server, UNKNOWN_TOKEN, query="")

        assert server.replica.index == index
