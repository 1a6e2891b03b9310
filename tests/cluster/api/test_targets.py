"""What a path and a query come to is worked out once, and what is kept has bounds."""

import json
from typing import Any

from tests.builders import a_job
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import ask
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.spec.words import register
from wharf.cluster.api.reads import MAX_SHARED_REPLY_BYTES, SharedReplyCache
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.targets import MAX_CACHED_TARGETS, MAX_KEY_BYTES, RequestTarget, RequestTargetCache
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALL_TABLES
from wharf.contract.wire.endpoint_table import ENDPOINTS


def a_target() -> RequestTarget:
    return RequestTarget(ENDPOINTS[0], {}, {}, {}, QueryOptions(), (), is_pretty=False, is_cors_allowed=False)


def test_of_too_many_targets_the_oldest_go() -> None:
    targets = RequestTargetCache()

    for number in range(MAX_CACHED_TARGETS + 1):
        targets.put(("GET", b"/v1/job/%d" % number, b""), a_target())

    assert targets.get(("GET", b"/v1/job/0", b"")) is None
    assert targets.get(("GET", b"/v1/job/1", b"")) is not None
    assert targets.get(("GET", b"/v1/job/%d" % MAX_CACHED_TARGETS, b"")) is not None


def test_a_long_target_is_not_kept() -> None:
    targets = RequestTargetCache()
    long = ("GET", b"/v1/jobs", b"filter=" + b"x" * MAX_KEY_BYTES)

    targets.put(long, a_target())

    assert targets.get(long) is None


def test_what_was_found_is_let_go_when_its_bodies_are_too_many() -> None:
    board, replica = SharedReplyCache(), Replica(ALL_TABLES)
    board.get(replica, "asked")
    found = ReadResult("found", 7, ())
    board.put("asked", found)

    board.add_bytes(MAX_SHARED_REPLY_BYTES)
    before = board.get(replica, "asked")
    board.add_bytes(1)

    assert (before, board.get(replica, "asked")) == (found, None)


async def get(server: OneServer, path: str, query: str = "", **options: Any) -> Any:
    return await ask(server.api, "GET", path, query=query, **options)


@in_virtual_time
async def test_the_same_question_is_answered_from_what_stands_there_now() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        missing = [(await get(server, "/v1/job/shop")).status for _ in range(2)]
        await register(server, a_job())
        await pass_time(2.0)
        first = [json.loads((await get(server, "/v1/job/shop")).body)["Priority"] for _ in range(2)]
        await register(server, a_job(priority=70))
        second = [json.loads((await get(server, "/v1/job/shop")).body)["Priority"] for _ in range(2)]

        assert (missing, first, second) == ([404, 404], [50, 50], [70, 70])


@in_virtual_time
async def test_what_is_wrong_with_a_question_is_told_each_time() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        told = [(await get(server, "/v1/jobs", "per_page=x")).status for _ in range(3)]

        assert told == [400, 400, 400]
