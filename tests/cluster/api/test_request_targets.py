"""The caches of parsed request targets and shared replies, and their limits."""

import json
from typing import Any

from tests.builders import a_job
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.spec.server_requests import register
from wharf.cluster.api.replies.shared import MAX_SHARED_REPLY_BYTES, SharedReplyCache
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.targets import (
    MAX_CACHED_TARGET_BYTES,
    MAX_CACHED_TARGETS,
    RequestTarget,
    RequestTargetCache,
)
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALL_TABLES
from wharf.contract.wire.endpoint_table import ENDPOINTS


def a_target() -> RequestTarget:
    return RequestTarget(ENDPOINTS[0], {}, {}, {}, QueryOptions(), (), is_pretty=False, is_cors_allowed=False)


def test_the_oldest_target_is_evicted_when_the_cache_is_full() -> None:
    targets = RequestTargetCache()

    for number in range(MAX_CACHED_TARGETS + 1):
        targets.put(("GET", b"/v1/job/%d" % number, b""), a_target())

    assert targets.get(("GET", b"/v1/job/0", b"")) is None
    assert targets.get(("GET", b"/v1/job/1", b"")) is not None
    assert targets.get(("GET", b"/v1/job/%d" % MAX_CACHED_TARGETS, b"")) is not None


def test_a_long_target_is_not_cached() -> None:
    targets = RequestTargetCache()
    long = ("GET", b"/v1/jobs", b"filter=" + b"x" * MAX_CACHED_TARGET_BYTES)

    targets.put(long, a_target())

    assert targets.get(long) is None


def test_shared_replies_are_dropped_when_their_bodies_are_too_large() -> None:
    cache, replica = SharedReplyCache(), Replica(ALL_TABLES)
    cache.get(replica, "key")
    matches = ReadResult("found", 7, ())
    cache.put("key", matches)

    cache.add_bytes(MAX_SHARED_REPLY_BYTES)
    before = cache.get(replica, "key")
    cache.add_bytes(1)

    assert (before, cache.get(replica, "key")) == (matches, None)


async def get(server: OneServer, path: str, query: str = "", **options: Any) -> Any:
    return await send_raw(server.api, "GET", path, query=query, **options)


@in_virtual_time
async def test_a_repeated_request_returns_current_data() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        missing = [(await get(server, "/v1/job/shop")).status for _ in range(2)]
        await register(server, a_job())
        await pass_time(2.0)
        first = [json.loads((await get(server, "/v1/job/shop")).body)["Priority"] for _ in range(2)]
        await register(server, a_job(priority=70))
        second = [json.loads((await get(server, "/v1/job/shop")).body)["Priority"] for _ in range(2)]

        assert (missing, first, second) == ([404, 404], [45, 45], [70, 70])


@in_virtual_time
async def test_an_invalid_request_is_refused_every_time() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        result = [(await get(server, "/v1/jobs", "per_page=x")).status for _ in range(3)]

        assert result == [400, 400, 400]
