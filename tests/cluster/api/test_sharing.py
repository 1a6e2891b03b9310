"""Many who wait for the same: one evaluation, one body; and what must not be shared."""

import asyncio
import json
from typing import Any

import pytest

from tests.builders import a_job
from tests.kit.callers import a_token, change_rules, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import ask
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time, until
from tests.spec.words import register
from wharf.cluster.api.replies.encoding import EncodedRecordCache, ListBodyCache, ReplyBody
from wharf.contract.client import ClientReply

READ = 'namespace "default" { policy = "read" }'


async def get(server: OneServer, path: str, query: str = "", **options: Any) -> ClientReply:
    return await ask(server.api, "GET", path, query=query, **options)


def counted(server: OneServer, name: str) -> list[int]:
    """Grows by one each time the handler is run."""
    runs: list[int] = []
    handlers = server.api._reads._handlers
    handler = handlers[name]

    def counting(*args: Any) -> Any:
        runs.append(1)
        return handler(*args)

    handlers[name] = counting
    return runs


async def all_wait(
    cluster: ACluster, server: OneServer, count: int, path: str, query: str, **options: Any
) -> list[asyncio.Task[ClientReply]]:
    before = server.server.reader.waiter_count
    asking = [cluster.start(get(server, path, query, **options), name=f"asks {number}") for number in range(count)]
    await until(lambda: server.server.reader.waiter_count == before + count, what="all wait")
    return asking


@pytest.mark.parametrize("path", ["/v1/job/shop", "/v1/jobs"])
def test_a_thousand_who_wait_for_the_same_are_answered_by_one_evaluation(path: str) -> None:
    @in_virtual_time
    async def story() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            await register(server, a_job())
            await pass_time(2.0)
            index = (await get(server, path)).headers["x-cluster-index"]
            asking = await all_wait(cluster, server, 1_000, path, f"index={index}&wait=60s")
            runs = counted(server, "job.read" if path != "/v1/jobs" else "job.list")

            await register(server, a_job(priority=70))
            replies = [await each for each in asking]

            assert len({reply.body for reply in replies}) <= 2  # The first wake may come between two writes.
            assert len(runs) <= 5

    story()


@in_virtual_time
async def test_those_who_ask_something_else_or_otherwise_get_their_own() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        index = (await get(server, "/v1/jobs")).headers["x-cluster-index"]
        queries = ["", "&pretty", "&prefix=s", "&prefix=x", "&namespace=other", "&filter=ID+!=+shop"]
        asking = [(await all_wait(cluster, server, 1, "/v1/jobs", f"index={index}&wait=60s{q}"))[0] for q in queries]

        await register(server, a_job())
        bodies = [(await each).body for each in asking]

        ids = [[job["ID"] for job in json.loads(body)] for body in bodies]
        assert ids == [["shop"], ["shop"], ["shop"], [], [], []]
        assert [b"\n" in body for body in bodies[:2]] == [False, True]


@in_virtual_time
async def test_rights_are_not_shared_and_are_asked_again_on_every_wake() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        manager = await a_token(server, management=True)
        keeps, loses = await a_token(server, READ), await a_token(server, READ)
        index = (await get(server, "/v1/jobs", headers=keeps)).headers["x-cluster-index"]
        query = f"index={index}&wait=60s"
        (kept,) = await all_wait(cluster, server, 1, "/v1/jobs", query, headers=keeps)
        (lost,) = await all_wait(cluster, server, 1, "/v1/jobs", query, headers=loses)

        await change_rules(server, loses, "")
        await register(server, a_job(), headers=manager)

        assert [(await kept).status, (await lost).status] == [200, 403]


@in_virtual_time
async def test_over_all_namespaces_each_sees_its_own_part_of_one_list() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        manager = await a_token(server, management=True)
        here = await a_token(server, READ)
        elsewhere = await a_token(server, 'namespace "other" { policy = "read" }')
        index = (await get(server, "/v1/jobs", headers=manager)).headers["x-cluster-index"]
        query = f"index={index}&wait=60s&namespace=*"
        asking = [
            (await all_wait(cluster, server, 1, "/v1/jobs", query, headers=who))[0]
            for who in (manager, here, elsewhere)
        ]

        await register(server, a_job(), headers=manager)

        assert [len(json.loads((await each).body)) for each in asking] == [1, 1, 0]


@in_virtual_time
async def test_whoever_leaves_takes_nothing_from_the_others() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        index = (await get(server, "/v1/jobs")).headers["x-cluster-index"]
        gone = asyncio.Event()
        (leaves,) = await all_wait(cluster, server, 1, "/v1/jobs", f"index={index}&wait=60s", gone=gone)
        (stays,) = await all_wait(cluster, server, 1, "/v1/jobs", f"index={index}&wait=60s")

        gone.set()
        await leaves
        await register(server, a_job())

        assert json.loads((await stays).body)[0]["ID"] == "shop"
        assert server.server.reader.waiter_count == 0


@in_virtual_time
async def test_a_server_that_stops_answers_all_who_wait_at_once() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        index = (await get(server, "/v1/jobs")).headers["x-cluster-index"]
        asking = await all_wait(cluster, server, 500, "/v1/jobs", f"index={index}&wait=600s")
        began_s = now_s()

        server.server.reader.close()
        replies = [await each for each in asking]

        assert {(reply.status, reply.body) for reply in replies} == {(200, b"[]")}
        assert now_s() - began_s < 1.0


@in_virtual_time
async def test_an_index_of_another_past_is_answered_with_the_lower_one() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        reply = await get(server, "/v1/jobs", "index=1000000&wait=1s")

        assert (reply.status, reply.headers["x-cluster-index"]) == (200, "1")


# -- what is kept


def test_a_form_is_that_of_this_record_and_of_what_it_rests_on() -> None:
    forms = EncodedRecordCache()
    record, rests_on = object(), object()
    forms.put("list", record, rests_on, b"form")

    assert forms.get("list", record, rests_on) == b"form"
    assert forms.get("list", record, object()) is None
    assert forms.get("list", object(), rests_on) is None
    assert forms.get("other", record, rests_on) is None


def test_of_too_many_forms_the_oldest_go() -> None:
    forms = EncodedRecordCache(max_bytes=2_000)
    records = [object() for _ in range(10)]
    for record in records:
        forms.put("list", record, None, b"x" * 300)

    assert [forms.get("list", record, None) is not None for record in records] == [False] * 6 + [True] * 4


def test_a_kept_body_stands_for_one_state() -> None:
    bodies = ListBodyCache(max_bytes=10_000)
    bodies.put("jobs", (1, 7), ReplyBody((b"[1]",)), "token")

    assert bodies.get("jobs", (1, 8)) is None
    assert bodies.get("nodes", (1, 7)) is None
    body, token = bodies.get("jobs", (1, 7)) or (ReplyBody(()), "")
    assert (body.chunks, token) == ((b"[1]",), "token")


def test_of_too_many_bodies_those_that_nobody_asked_for_lately_go() -> None:
    bodies = ListBodyCache(max_bytes=5_000)
    for name in "abc":
        bodies.put(name, 1, ReplyBody((b"x" * 1_500,)), "")
        bodies.get("a", 1)
    bodies.put("huge", 1, ReplyBody((b"x" * 4_000,)), "")

    assert [name for name in ("a", "b", "c", "huge") if bodies.get(name, 1)] == ["a", "c"]
