"""Replies shared by many callers: one evaluation and one body, and which callers must not share."""

import asyncio
import json
from typing import Any

import pytest

from tests.builders import a_job
from tests.kit.callers import a_token, change_rules, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time, until
from tests.spec.server_requests import register
from wharf.cluster.api.replies.encoding import EncodedRecordCache, ListBodyCache, ReplyBody
from wharf.contract.client import ClientReply

READ = 'namespace "default" { policy = "read" }'


async def get(server: OneServer, path: str, query: str = "", **options: Any) -> ClientReply:
    return await send_raw(server.api, "GET", path, query=query, **options)


def count_calls(server: OneServer, name: str) -> list[int]:
    """Return a list that grows by one each time the handler is called."""
    runs: list[int] = []
    handlers = server.api.reads.handlers
    handler = handlers[name]

    def counting(*args: Any) -> Any:
        runs.append(1)
        return handler(*args)

    handlers[name] = counting
    return runs


async def start_blocking_reads(
    cluster: ACluster, server: OneServer, count: int, path: str, query: str, **options: Any
) -> list[asyncio.Task[ClientReply]]:
    before = server.server.reader.waiter_count
    pending = [cluster.start(get(server, path, query, **options), name=f"asks {number}") for number in range(count)]
    await until(lambda: server.server.reader.waiter_count == before + count, what="all queries wait")
    return pending


@pytest.mark.parametrize("path", ["/v1/job/shop", "/v1/jobs"])
def test_a_thousand_equal_blocking_queries_share_one_evaluation(path: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            await register(server, a_job())
            await pass_time(2.0)
            index = (await get(server, path)).headers["x-cluster-index"]
            pending = await start_blocking_reads(cluster, server, 1_000, path, f"index={index}&wait=60s")
            runs = count_calls(server, "job.read" if path != "/v1/jobs" else "job.list")

            await register(server, a_job(priority=70))
            replies = [await each for each in pending]

            assert len({reply.body for reply in replies}) <= 2  # The first wake-up may happen between two writes.
            assert len(runs) <= 5

    run()


@in_virtual_time
async def test_different_queries_do_not_share_a_reply() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        index = (await get(server, "/v1/jobs")).headers["x-cluster-index"]
        queries = ["", "&pretty", "&prefix=s", "&prefix=x", "&namespace=other", "&filter=ID+!=+shop"]
        pending = [
            (await start_blocking_reads(cluster, server, 1, "/v1/jobs", f"index={index}&wait=60s{q}"))[0]
            for q in queries
        ]

        await register(server, a_job())
        bodies = [(await each).body for each in pending]

        ids = [[job["ID"] for job in json.loads(body)] for body in bodies]
        assert ids == [["shop"], ["shop"], ["shop"], [], [], []]
        assert [b"\n" in body for body in bodies[:2]] == [False, True]


@in_virtual_time
async def test_callers_with_different_rights_do_not_share_and_rights_are_checked_on_every_wake_up() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        manager = await a_token(server, management=True)
        steady_caller, revoked_caller = await a_token(server, READ), await a_token(server, READ)
        index = (await get(server, "/v1/jobs", headers=steady_caller)).headers["x-cluster-index"]
        query = f"index={index}&wait=60s"
        (retained,) = await start_blocking_reads(cluster, server, 1, "/v1/jobs", query, headers=steady_caller)
        (revoked_reply,) = await start_blocking_reads(cluster, server, 1, "/v1/jobs", query, headers=revoked_caller)

        await change_rules(server, revoked_caller, "")
        await register(server, a_job(), headers=manager)

        assert [(await retained).status, (await revoked_reply).status] == [200, 403]


@in_virtual_time
async def test_a_shared_list_of_all_namespaces_is_filtered_for_each_caller() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        manager = await a_token(server, management=True)
        local = await a_token(server, READ)
        other_reply = await a_token(server, 'namespace "other" { policy = "read" }')
        index = (await get(server, "/v1/jobs", headers=manager)).headers["x-cluster-index"]
        query = f"index={index}&wait=60s&namespace=*"
        pending = [
            (await start_blocking_reads(cluster, server, 1, "/v1/jobs", query, headers=callers))[0]
            for callers in (manager, local, other_reply)
        ]

        await register(server, a_job(), headers=manager)

        assert [len(json.loads((await each).body)) for each in pending] == [1, 1, 0]


@in_virtual_time
async def test_a_disconnected_caller_does_not_affect_others_that_share_its_reply() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        index = (await get(server, "/v1/jobs")).headers["x-cluster-index"]
        removed = asyncio.Event()
        (disconnecting,) = await start_blocking_reads(
            cluster, server, 1, "/v1/jobs", f"index={index}&wait=60s", disconnected=removed
        )
        (remaining,) = await start_blocking_reads(cluster, server, 1, "/v1/jobs", f"index={index}&wait=60s")

        removed.set()
        await disconnecting
        await register(server, a_job())

        assert json.loads((await remaining).body)[0]["ID"] == "shop"
        assert server.server.reader.waiter_count == 0


@in_virtual_time
async def test_a_stopping_server_answers_all_blocking_queries_at_once() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        index = (await get(server, "/v1/jobs")).headers["x-cluster-index"]
        pending = await start_blocking_reads(cluster, server, 500, "/v1/jobs", f"index={index}&wait=600s")
        began_s = now_s()

        server.server.reader.close()
        replies = [await each for each in pending]

        assert {(reply.status, reply.body) for reply in replies} == {(200, b"[]")}
        assert now_s() - began_s < 1.0


@in_virtual_time
async def test_an_index_above_the_current_one_is_answered_with_the_lower_index() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        reply = await get(server, "/v1/jobs", "index=1000000&wait=1s")

        assert (reply.status, reply.headers["x-cluster-index"]) == (200, "1")


# -- caches


def test_a_cached_record_encoding_belongs_to_its_record_and_dependency() -> None:
    encodings = EncodedRecordCache()
    record, rests_on = object(), object()
    encodings.put("list", record, rests_on, b"form")

    assert encodings.get("list", record, rests_on) == b"form"
    assert encodings.get("list", record, object()) is None
    assert encodings.get("list", object(), rests_on) is None
    assert encodings.get("other", record, rests_on) is None


def test_the_oldest_record_encodings_are_evicted() -> None:
    encodings = EncodedRecordCache(max_bytes=2_000)
    records = [object() for _ in range(10)]
    for record in records:
        encodings.put("list", record, None, b"x" * 300)

    assert [encodings.get("list", record, None) is not None for record in records] == [False] * 6 + [True] * 4


def test_a_cached_list_body_belongs_to_one_version() -> None:
    bodies = ListBodyCache(max_bytes=10_000)
    bodies.put("jobs", (1, 7), ReplyBody((b"[1]",)), "token")

    assert bodies.get("jobs", (1, 8)) is None
    assert bodies.get("nodes", (1, 7)) is None
    body, token = bodies.get("jobs", (1, 7)) or (ReplyBody(()), "")
    assert (body.chunks, token) == ((b"[1]",), "token")


def test_the_least_recently_used_list_bodies_are_evicted() -> None:
    bodies = ListBodyCache(max_bytes=5_000)
    for name in "abc":
        bodies.put(name, 1, ReplyBody((b"x" * 1_500,)), "")
        bodies.get("a", 1)
    bodies.put("huge", 1, ReplyBody((b"x" * 4_000,)), "")

    assert [name for name in ("a", "b", "c", "huge") if bodies.get(name, 1)] == ["a", "c"]
