"""Nodes are paced, so that a burst of placements or of returning nodes does not delay the requests of others (ADR 95, 132)."""

import asyncio

from tests.builders import a_job
from tests.kit.cluster import ACluster, ANode, OneServer
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time
from wharf.cluster.api.pacing import (
    MAX_WAITING_REQUESTS,
    REQUESTS_PER_ITERATION,
    SLOTS_PER_STEP,
    STEP_S,
    ReplyPacer,
)
from wharf.cluster.server.loop_slots import LoopSlots


async def take_slots(pacer: ReplyPacer, count: int) -> list[float]:
    """Request slots at the same time. Return when each got its slot, in seconds from now."""
    began_s = now_s()

    async def take_slot() -> float:
        await pacer.wait_for_slot()
        return now_s() - began_s

    return await asyncio.gather(*(take_slot() for _ in range(count)))


@in_virtual_time
async def test_a_few_callers_get_their_slots_at_once() -> None:
    pacer = ReplyPacer(LoopSlots())

    for _ in range(10):
        assert await take_slots(pacer, SLOTS_PER_STEP) == [0.0] * SLOTS_PER_STEP
        await pass_time(2 * STEP_S)


@in_virtual_time
async def test_many_callers_get_their_slots_at_a_limited_rate() -> None:
    steps = 40

    at_s = await take_slots(ReplyPacer(LoopSlots()), steps * SLOTS_PER_STEP)

    counts = [sum(round(each / STEP_S) == step for each in at_s) for step in range(steps)]
    assert counts == [SLOTS_PER_STEP] * steps


@in_virtual_time
async def test_a_caller_who_leaves_does_not_use_a_slot() -> None:
    pacer = ReplyPacer(LoopSlots())
    await take_slots(pacer, SLOTS_PER_STEP)
    leaving = [asyncio.create_task(pacer.wait_for_slot()) for _ in range(100)]
    await pass_time(STEP_S / 10)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)

    at_s = await take_slots(pacer, SLOTS_PER_STEP)

    assert max(at_s) <= STEP_S
    assert pacer.waiting_count == 0


def test_requests_of_nodes_begin_a_few_in_each_iteration_of_the_loop() -> None:
    async def test() -> list[int]:
        slots, began_by_iteration = LoopSlots(REQUESTS_PER_ITERATION), [0]

        async def begin() -> None:
            await slots.begin()
            began_by_iteration[-1] += 1

        requests = [asyncio.create_task(begin()) for _ in range(20 * REQUESTS_PER_ITERATION)]
        began_by_iteration.clear()
        while not all(request.done() for request in requests):
            began_by_iteration.append(0)
            await asyncio.sleep(0)
        return [count for count in began_by_iteration if count]

    assert asyncio.run(test()) == [REQUESTS_PER_ITERATION] * 20  # On a real loop, as its iterations are meant.


@in_virtual_time
async def test_a_request_of_a_node_that_gives_up_uses_no_slot() -> None:
    slots = LoopSlots(REQUESTS_PER_ITERATION)
    leaving = [asyncio.create_task(slots.begin()) for _ in range(100)]
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)

    await pass_time(0.001)

    assert slots.waiting_count == 0
    await asyncio.wait_for(slots.begin(), 0.001)


def test_no_node_is_answered_while_requests_wait_that_earlier_replies_caused() -> None:
    async def test() -> tuple[bool, bool]:
        requests, loop = LoopSlots(REQUESTS_PER_ITERATION), asyncio.get_running_loop()
        replies = ReplyPacer(requests)
        caused = [asyncio.create_task(requests.begin()) for _ in range(3 * MAX_WAITING_REQUESTS)]
        for _ in range(SLOTS_PER_STEP):
            await replies.wait_for_slot()
        answered = asyncio.create_task(replies.wait_for_slot())
        ends_s = loop.time() + 5 * STEP_S
        while loop.time() < ends_s:  # More requests arrive than may begin.
            caused += [asyncio.create_task(requests.begin()) for _ in range(2 * REQUESTS_PER_ITERATION)]
            await asyncio.sleep(0)
        was_answered = answered.done()
        await asyncio.gather(*caused)
        await asyncio.wait_for(answered, 30)
        return was_answered, answered.done()

    assert asyncio.run(test()) == (False, True)  # On a real loop: virtual time does not pass while requests wait.


RETURNING_REQUESTS = 200
MAX_EARLIER_REPLIES = 20
"""How many requests of nodes may be answered before a later request of a user. The others must wait."""


async def list_answered(server: OneServer, node: ANode, method: str, path: str, secret: str = "") -> list[str]:
    """Send many requests of a node, then one other request. Return which were answered, in order."""
    answered: list[str] = []

    async def send(name: str, method: str, path: str, query: str, secret: str) -> None:
        headers = {"x-cluster-node-secret": secret} if secret else {}
        reply = await send_raw(server.api, method, path, query=query, headers=headers)
        assert reply.status == 200
        answered.append(name)

    requests = [
        send("node", "GET", f"/v1/node/{node.id}/desired", "stale", node.secret_id) for _ in range(RETURNING_REQUESTS)
    ]
    await asyncio.gather(*requests, send("other", method, path, "stale", secret))
    return answered


@in_virtual_time
async def test_a_read_of_a_user_is_answered_before_most_requests_of_nodes_that_came_earlier() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(a_job("web"))
        await pass_time(5.0)

        answered = await list_answered(server, node, "GET", "/v1/job/web")

        assert answered.index("other") <= MAX_EARLIER_REPLIES
        assert len(answered) == RETURNING_REQUESTS + 1


@in_virtual_time
async def test_a_heartbeat_is_answered_before_most_other_requests_of_nodes_that_came_earlier() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(a_job("web"))
        await pass_time(5.0)

        answered = await list_answered(server, node, "PUT", f"/v1/node/{node.id}/heartbeat", node.secret_id)

        assert answered.index("other") <= MAX_EARLIER_REPLIES
        assert len(answered) == RETURNING_REQUESTS + 1
