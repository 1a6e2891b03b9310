"""Requests with bodies that arrive together use each iteration of the event loop for a limited time."""

import asyncio
import gc

from tests.kit.cluster import OneServer
from tests.kit.loop_holds import MeasuredCluster
from tests.kit.requests import get, put
from tests.kit.virtual_time import in_virtual_time
from wharf.contract.client import ClientReply

COUNT = 60
MAX_SHARE = 0.28
MAX_ITERATIONS = 2_000
CONSTRAINTS = [
    {"LTarget": "${attr.x}", "RTarget": f"([a-z]{{0,20}}){{0,20}}[0-9]*{number}", "Operand": "regexp"}
    for number in range(30)
]
JOB = {"ID": "a", "Datacenters": ["*"], "Constraints": CONSTRAINTS, "TaskGroups": []}
"""Each validation takes about 3 ms."""


async def measure_iterations(server: OneServer, path: str) -> tuple[list[float], list[ClientReply]]:
    """Send the job many times in one moment. Return the CPU time of each iteration of the loop, and the replies."""
    requests = asyncio.gather(*(put(server, path, {"Job": JOB}) for _ in range(COUNT)))
    iterations_s: list[float] = []
    began_s = server.world.cpu_s()
    gc.disable()  # It scans all objects of the test process.
    try:
        for _ in range(MAX_ITERATIONS):  # Virtual time stands still meanwhile: a request that waits for it ends later.
            if requests.done():
                break
            await asyncio.sleep(0)
            began_s, ended_s = server.world.cpu_s(), began_s
            iterations_s.append(began_s - ended_s)
    finally:
        gc.enable()
    return iterations_s, await requests


@in_virtual_time
async def test_bodies_that_arrive_together_hold_no_iteration_for_long() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()

        iterations_s, replies = await measure_iterations(server, "/v1/validate/job")

    assert {reply.status for reply in replies} == {200}
    # A share, because all of them take longer on a busy machine. Without slots, one iteration takes most of the time.
    assert max(iterations_s) <= MAX_SHARE * sum(iterations_s), iterations_s


@in_virtual_time
async def test_a_request_without_a_body_does_not_wait_behind_bodies_that_arrive_together() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        bodies = asyncio.gather(*(put(server, "/v1/validate/job", {"Job": JOB}) for _ in range(COUNT)))
        await asyncio.sleep(0)

        reply = await get(server, "/v1/status/leader", "stale")

        assert (reply.status, bodies.done()) == (200, False)
        await bodies
