"""The asyncio client with real servers in memory."""

from contextlib import aclosing

import pytest

from tests.builders import a_job
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import InMemoryStream
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time, until
from wharf.contract.client import AsyncClient, Unreachable
from wharf.contract.client.errors import Conflict, Forbidden, NotFound
from wharf.contract.client.transport import ClientReply, ClientRequest
from wharf.contract.wire.variables import VariableView


def a_client(*servers: OneServer) -> AsyncClient:
    return AsyncClient(servers[0].world, [server.exchange for server in servers])


@in_virtual_time
async def test_iterating_over_a_changing_list_neither_skips_nor_repeats_existing_jobs() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        client = a_client(server)
        for number in range(7):
            await client.jobs.register(a_job(f"job-{number}"))

        received = []
        async with aclosing(client.jobs.list.iterate(per_page=2)) as jobs:
            async for job in jobs:
                received.append(job.id)
                if len(received) == 3:
                    await client.jobs.register(a_job("job-1-and-a-half"))
                    await client.jobs.deregister("job-5", purge=True)

        permanent_jobs = {f"job-{number}" for number in range(7) if number != 5}
        assert [job for job in received if job in permanent_jobs] == sorted(permanent_jobs)
        assert len(received) == len(set(received))


@in_virtual_time
async def test_following_a_job_yields_each_change() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        client = a_client(server)
        await client.jobs.register(a_job("web", priority=50))

        received: list[int] = []
        async for answer in client.jobs.read.follow("web"):
            if answer.value.priority not in received:
                received.append(answer.value.priority)
                if len(received) == 3:
                    break
                await client.jobs.register(a_job("web", priority=50 + len(received)))

        assert received == [50, 51, 52]


@in_virtual_time
async def test_following_fails_over_to_another_server() -> None:
    async with ACluster() as cluster:
        first, second = await cluster.a_server("m1"), await cluster.a_server("m2", leads=False)
        client = a_client(first, second)
        await client.jobs.register(a_job("web", priority=50))

        received: list[int] = []
        async for answer in client.jobs.read.follow("web"):
            if answer.value.priority not in received:
                received.append(answer.value.priority)
                if len(received) == 2:
                    break
                first.exchange.is_away = True
                await second.client.jobs.register(a_job("web", priority=60))

        assert received == [50, 60]


@in_virtual_time
async def test_a_blocking_query_leaves_a_server_that_does_not_reply_to_another_call() -> None:
    async with ACluster() as cluster:
        first, second = await cluster.a_server("m1"), await cluster.a_server("m2", leads=False)
        client = a_client(first, second)
        index = (await client.jobs.list()).index
        query = cluster.start(client.jobs.list(index=index, wait_s=300.0, stale=True), name="blocking query")
        await until(lambda: len(first.exchange.sent) == 2, what="the query waits at the first server")
        send = first.exchange.send

        async def never_reply(request: ClientRequest) -> ClientReply:
            await pass_time(request.timeout_s)
            raise Unreachable("no reply in time", is_sent=True)

        first.exchange.send = never_reply  # type: ignore[method-assign]  # so that the server is frozen
        began_s = now_s()
        await client.nodes.list(stale=True)
        assert now_s() - began_s < 3
        await until(lambda: len(second.exchange.sent) == 2, what="the query waits at the second server", within_s=1.0)
        first.exchange.send = send  # type: ignore[method-assign]
        await second.client.jobs.register(a_job("web"))

        assert [job.id for job in (await query).value] == ["web"]


@in_virtual_time
async def test_events_continue_after_a_break_without_gap_or_repetition() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        client = a_client(server)
        opened: list[InMemoryStream] = []
        open_stream = server.exchange.open

        async def open_and_record(request: ClientRequest) -> InMemoryStream:
            opened.append(await open_stream(request))
            return opened[-1]

        server.exchange.open = open_and_record  # type: ignore[method-assign]  # so that the test can break it
        await client.jobs.register(a_job("job-0"))

        received: list[str] = []
        async for line in client.events.stream(["Job"], index=0):
            received += [event.key for event in line.events if event.type == "JobRegistered"]
            if len(received) == 4:
                break
            if len(opened) == 1:
                opened[0].break_connection()
                for number in range(1, 4):
                    await server.client.jobs.register(a_job(f"job-{number}"))

        assert received == ["job-0", "job-1", "job-2", "job-3"]
        assert len(opened) > 1


@in_virtual_time
async def test_a_write_with_a_lost_reply_is_made_only_once() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        client = a_client(server)
        send = server.exchange.send
        lost: list[object] = []

        async def lose_first_reply(request: ClientRequest) -> object:
            reply = await send(request)
            if not lost:
                lost.append(reply)
                raise Unreachable("the reply was lost", is_sent=True)
            return reply

        server.exchange.send = lose_first_reply  # type: ignore[method-assign,assignment]  # so that one reply is lost
        registered = await client.jobs.register(a_job("web"))
        server.exchange.send = send  # type: ignore[method-assign]

        assert (await client.jobs.read("web")).value.version == 0
        evaluations = [
            each for each in (await client.jobs.evaluations("web")).value if each.triggered_by == "job-register"
        ]
        assert [each.id for each in evaluations] == [registered.eval_id]


@in_virtual_time
async def test_a_variable_is_only_written_if_its_index_is_unchanged() -> None:
    async with ACluster() as cluster:
        client = a_client(await cluster.a_server())
        first = await client.variables.put("app/db", {"user": "one"})
        assert isinstance(first, VariableView)
        await client.variables.put("app/db", {"user": "two"}, cas=first.modify_index)

        with pytest.raises(Conflict):
            await client.variables.put("app/db", {"user": "three"}, cas=first.modify_index)

        assert (await client.variables.read("app/db")).value.items == {"user": "two"}


@in_virtual_time
async def test_missing_jobs_and_missing_permissions_raise_typed_errors() -> None:
    async with ACluster() as cluster:
        open_server, protected_server = (
            await cluster.a_server("m1"),
            await cluster.a_server("m2", leads=False, access=True),
        )

        with pytest.raises(NotFound, match="job not found"):
            await a_client(open_server).jobs.read("nothing")
        with pytest.raises(Forbidden):
            await a_client(protected_server).nodes.list()
