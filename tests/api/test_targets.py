"""What a path and a query come to is worked out once, and what is kept has bounds."""

import json
from typing import Any

from tests.builders import a_job
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import ask
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.spec.words import register
from wharf.api.parameters import ReadOptions
from wharf.api.reads import BOARD_MAX_BYTES, Board
from wharf.api.targets import KEPT_MAX, KEY_MAX_BYTES, Target, Targets
from wharf.server.reading import Found
from wharf.state import Replica
from wharf.state.tables import ALL_TABLES
from wharf.wire.endpoints import ENDPOINTS


def a_target() -> Target:
    return Target(ENDPOINTS[0], {}, {}, {}, ReadOptions(), (), is_pretty=False, is_for_pages=False)


def test_of_too_many_targets_the_oldest_go() -> None:
    targets = Targets()

    for number in range(KEPT_MAX + 1):
        targets.keep(("GET", b"/v1/job/%d" % number, b""), a_target())

    assert targets.get(("GET", b"/v1/job/0", b"")) is None
    assert targets.get(("GET", b"/v1/job/1", b"")) is not None
    assert targets.get(("GET", b"/v1/job/%d" % KEPT_MAX, b"")) is not None


def test_a_long_target_is_not_kept() -> None:
    targets = Targets()
    long = ("GET", b"/v1/jobs", b"filter=" + b"x" * KEY_MAX_BYTES)

    targets.keep(long, a_target())

    assert targets.get(long) is None


def test_what_was_found_is_let_go_when_its_bodies_are_too_many() -> None:
    board, replica = Board(), Replica(ALL_TABLES)
    board.get(replica, "asked")
    found = Found("found", 7, ())
    board.keep("asked", found)

    board.weigh(BOARD_MAX_BYTES)
    before = board.get(replica, "asked")
    board.weigh(1)

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
