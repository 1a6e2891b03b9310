"""Access checks: what each endpoint requires, and how callers without the right are refused."""

import json
from typing import Any

import msgspec

from tests.builders import a_job
from tests.kit.callers import a_token, change_rules, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time, until
from wharf.cluster.state.tables import NAMESPACES
from wharf.contract.client import ClientReply
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.namespaces import Namespace

READ = 'namespace "default" { policy = "read" }'
WRITE = 'namespace "default" { policy = "write" }'
DENIED = (403, b"Permission denied")


async def get(server: OneServer, path: str, query: str = "", **options: Any) -> ClientReply:
    return await send_raw(server.api, "GET", path, query=query, **options)


def status_and_body(reply: ClientReply) -> tuple[int, bytes]:
    return reply.status, reply.body


@in_virtual_time
async def test_while_access_control_is_off_tokens_are_ignored() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert (await get(server, "/v1/jobs", headers={"x-cluster-token": "nonsense"})).status == 200


@in_virtual_time
async def test_a_read_a_write_and_a_list_without_the_right_are_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        reader = await a_token(server, READ)
        body = msgspec.json.encode({"Job": a_job()})

        assert status_and_body(await get(server, "/v1/jobs")) == DENIED
        assert status_and_body(await get(server, "/v1/nodes", headers=reader)) == DENIED
        assert status_and_body(await get(server, "/v1/jobs", "namespace=other", headers=reader)) == DENIED
        assert status_and_body(await send_raw(server.api, "PUT", "/v1/jobs", body=body, headers=reader)) == DENIED
        assert status_and_body(await send_raw(server.api, "DELETE", "/v1/job/shop", headers=reader)) == DENIED
        assert (await get(server, "/v1/jobs", headers=reader)).status == 200
        assert (await get(server, "/v1/status/leader")).status == 200


@in_virtual_time
async def test_an_invalid_token_is_refused_where_no_token_is_allowed() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)

        for submitted in ("6f1c1d3e-1d0a-4a8e-9f3e-1b2c3d4e5f60", "no secret at all", "x" * 20_000):
            assert status_and_body(await get(server, "/v1/jobs", headers={"x-cluster-token": submitted})) == DENIED


@in_virtual_time
async def test_the_namespace_of_the_body_is_checked_if_the_query_names_none() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        writer = await a_token(server, WRITE)

        async def status_of(namespace: str) -> int:
            body = msgspec.json.encode({"Job": a_job(namespace=namespace)})
            return (await send_raw(server.api, "PUT", "/v1/jobs", body=body, headers=writer)).status

        assert [await status_of(namespace) for namespace in ("other", "default")] == [403, 200]


@in_virtual_time
async def test_a_list_of_all_namespaces_contains_what_the_caller_may_read() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        add = Write(
            "test",
            Cause(CauseKind.REQUEST, "test"),
            [NAMESPACES.build_put(Namespace(name="other", create_index=WRITE_INDEX))],
        )
        await server.server.writer.commit(add)
        for namespace in ("default", "other"):
            body = msgspec.json.encode({"Job": a_job(namespace=namespace)})
            assert (await send_raw(server.api, "PUT", "/v1/jobs", body=body)).status == 200
        enable_acl(server)
        reader, manager = await a_token(server, READ), await a_token(server, management=True)
        powerless = await a_token(server, 'node { policy = "read" }')

        async def namespaces(path: str, headers: dict[str, str]) -> set[str]:
            return {
                each["Namespace"] for each in json.loads((await get(server, path, "namespace=*", headers=headers)).body)
            }

        for path in ("/v1/jobs", "/v1/evaluations"):
            assert await namespaces(path, reader) == {"default"}
            assert await namespaces(path, manager) == {"default", "other"}
            assert status_and_body(await get(server, path, "namespace=*", headers=powerless)) == DENIED


@in_virtual_time
async def test_a_blocking_caller_that_loses_its_right_is_refused_on_wake_up() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        reader = await a_token(server, READ)
        manager = await a_token(server, management=True)
        index = (await get(server, "/v1/jobs", headers=reader)).headers["x-cluster-index"]
        before = server.replica.watches.subscription_count
        pending = cluster.start(get(server, "/v1/jobs", f"index={index}&wait=60s", headers=reader), name="query")
        await until(lambda: server.replica.watches.subscription_count == before + 1, what="the query waits")

        await change_rules(server, reader, "")
        body = msgspec.json.encode({"Job": a_job()})
        await send_raw(server.api, "PUT", "/v1/jobs", body=body, headers=manager)

        assert status_and_body(await pending) == DENIED
