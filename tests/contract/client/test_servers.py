"""The client against real servers in memory."""

from contextlib import aclosing

import pytest

from tests.builders import a_job
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import OpenedInMemory
from tests.kit.virtual_time import in_virtual_time
from wharf.contract.client import AsyncClient, Unreachable
from wharf.contract.client.errors import Conflict, Forbidden, NotFound
from wharf.contract.client.transport import ClientRequest
from wharf.contract.wire.variables import VariableView


def a_client(*servers: OneServer) -> AsyncClient:
    return AsyncClient(servers[0].world, [server.exchange for server in servers])


@in_virtual_time
async def test_a_list_that_grows_while_it_is_walked_skips_and_repeats_nothing_that_was_there() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        client = a_client(server)
        for number in range(7):
            await client.jobs.register(a_job(f"job-{number}"))

        seen = []
        async with aclosing(client.jobs.list.iterate(per_page=2)) as jobs:
            async for job in jobs:
                seen.append(job.id)
                if len(seen) == 3:
                    await client.jobs.register(a_job("job-1-and-a-half"))
                    await client.jobs.deregister("job-5", purge=True)

        lasting = {f"job-{number}" for number in range(7) if number != 5}
        assert [job for job in seen if job in lasting] == sorted(lasting)
        assert len(seen) == len(set(seen))


@in_virtual_time
async def test_a_job_is_followed_through_its_changes() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        client = a_client(server)
        await client.jobs.register(a_job("web", priority=50))

        seen: list[int] = []
        async for answer in client.jobs.read.follow("web"):
            if answer.value.priority not in seen:
                seen.append(answer.value.priority)
                if len(seen) == 3:
                    break
                await client.jobs.register(a_job("web", priority=50 + len(seen)))

        assert seen == [50, 51, 52]


@in_virtual_time
async def test_following_goes_on_at_another_server_when_one_goes() -> None:
    async with ACluster() as cluster:
        first, second = await cluster.a_server("m1"), await cluster.a_server("m2", leads=False)
        client = a_client(first, second)
        await client.jobs.register(a_job("web", priority=50))

        seen: list[int] = []
        async for answer in client.jobs.read.follow("web"):
            if answer.value.priority not in seen:
                seen.append(answer.value.priority)
                if len(seen) == 2:
                    break
                first.exchange.is_away = True
                await second.client.jobs.register(a_job("web", priority=60))

        assert seen == [50, 60]


@in_virtual_time
async def test_events_go_on_after_a_break_without_a_gap_and_without_a_repeat() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        client = a_client(server)
        opened: list[OpenedInMemory] = []
        open_one = server.exchange.open

        async def open_and_keep(request: ClientRequest) -> OpenedInMemory:
            opened.append(await open_one(request))
            return opened[-1]

        server.exchange.open = open_and_keep  # type: ignore[method-assign]  # so that the test can break it
        await client.jobs.register(a_job("job-0"))

        seen: list[str] = []
        async for line in client.events.stream(["Job"], index=0):
            seen += [event.key for event in line.events if event.type == "JobRegistered"]
            if len(seen) == 4:
                break
            if len(opened) == 1:
                opened[0].break_off()
                for number in range(1, 4):
                    await server.client.jobs.register(a_job(f"job-{number}"))

        assert seen == ["job-0", "job-1", "job-2", "job-3"]
        assert len(opened) > 1


@in_virtual_time
async def test_a_write_whose_reply_was_lost_is_made_once() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        client = a_client(server)
        send = server.exchange.send
        lost: list[object] = []

        async def lose_the_first(request: ClientRequest) -> object:
            reply = await send(request)
            if not lost:
                lost.append(reply)
                raise Unreachable("the reply was lost", is_sent=True)
            return reply

        server.exchange.send = lose_the_first  # type: ignore[method-assign,assignment]  # so that one reply is lost
        done = await client.jobs.register(a_job("web"))
        server.exchange.send = send  # type: ignore[method-assign]

        assert (await client.jobs.read("web")).value.version == 0
        made = [each for each in (await client.jobs.evaluations("web")).value if each.triggered_by == "job-register"]
        assert [each.id for each in made] == [done.eval_id]


@in_virtual_time
async def test_a_variable_is_only_written_over_what_was_seen() -> None:
    async with ACluster() as cluster:
        client = a_client(await cluster.a_server())
        first = await client.variables.put("app/db", {"user": "one"})
        assert isinstance(first, VariableView)
        await client.variables.put("app/db", {"user": "two"}, cas=first.modify_index)

        with pytest.raises(Conflict):
            await client.variables.put("app/db", {"user": "three"}, cas=first.modify_index)

        assert (await client.variables.read("app/db")).value.items == {"user": "two"}


@in_virtual_time
async def test_what_is_not_there_and_what_may_not_be_done_have_types() -> None:
    async with ACluster() as cluster:
        open_door, closed = await cluster.a_server("m1"), await cluster.a_server("m2", leads=False, access=True)

        with pytest.raises(NotFound, match="job not found"):
            await a_client(open_door).jobs.read("nothing")
        with pytest.raises(Forbidden):
            await a_client(closed).nodes.list()
