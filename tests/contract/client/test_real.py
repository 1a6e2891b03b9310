"""Both clients with a real `wharf dev` agent, over HTTP."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, closing

import pytest

from tests.agent.processes import RunningAgent, running
from tests.builders import a_job
from wharf.contract.client import ClientSettings, connect, connect_async
from wharf.contract.client.errors import NotFound
from wharf.contract.model.jobs.job import Job

UNREACHABLE_ADDRESS = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    with running(tmp_path_factory.mktemp("client") / "agent", "dev", "--port", "0") as agent:
        agent.wait_ready()
        yield agent


def test_synchronous_client(agent: RunningAgent) -> None:
    with connect(ClientSettings(addresses=(UNREACHABLE_ADDRESS, agent.address))) as client:
        client.jobs.register(a_job("web"))
        client.jobs.register({"ID": "deep/er", "Type": "batch", "TaskGroups": [{"Name": "g", "Tasks": [A_TASK]}]})

        assert [job.id for job in client.jobs.list.iterate(per_page=1)] == ["deep/er", "web"]
        assert client.jobs.read("deep/er").value.id == "deep/er"
        with closing(client.jobs.summary.follow("web")) as summaries:
            assert any(all(group.running for group in (summary.value.summary or {}).values()) for summary in summaries)
        with closing(client.events.stream(["Job:web"], index=0)) as lines:
            assert next(lines).events[0].key == "web"
        assert len(b"".join(client.operator.save_snapshot())) > 1_000
        with pytest.raises(NotFound, match="job not found"):
            client.jobs.read("nothing")


A_TASK = {"Name": "t", "Driver": "mock_driver", "Config": {"run_for": "1s"}}


def test_asyncio_client(agent: RunningAgent) -> None:
    async def run_client() -> None:
        async with connect_async(ClientSettings(addresses=(agent.address,))) as client:
            registered = await client.jobs.register(a_job("async"))

            async def changes() -> Job:
                async with aclosing(client.jobs.read.follow("async")) as responses:
                    async for response in responses:
                        if response.value.version == 1:
                            return response.value
                raise AssertionError("following ended")

            changed, _ = await asyncio.gather(changes(), client.jobs.register(a_job("async", priority=77)))
            again = await client.jobs.register(a_job("async", priority=77), idempotency_key="once")
            repeated = await client.jobs.register(a_job("async", priority=77), idempotency_key="once")

            assert (changed.priority, registered.eval_id != again.eval_id) == (77, True)
            assert repeated == again
            assert [job.id async for job in client.jobs.list.iterate(prefix="asy")] == ["async"]

    asyncio.run(run_client())
