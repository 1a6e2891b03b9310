"""Both clients with a real `wharf dev` agent, over HTTP."""

import asyncio
import errno
import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import aclosing, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.agent.processes import RunningAgent, running
from tests.builders import a_job
from tests.waiting import wait_until
from wharf.contract.client import (
    ClientSettings,
    JobFailed,
    RemoteError,
    RemoteTraceback,
    connect,
    connect_async,
    submit,
)
from wharf.contract.client import map as remote_map
from wharf.contract.client.errors import NotFound
from wharf.contract.model.jobs.job import Job

WAIT_S = 30.0
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


def test_a_script_runs_as_an_array_of_jobs(agent: RunningAgent, tmp_path: Path) -> None:
    script = tmp_path / "odd.sh"
    script.write_text("#!/bin/sh\ntest $(($WHARF_ARRAY_ITEM % 2)) = 1 && exit 0\nexit $1\n")

    with connect(ClientSettings(addresses=(agent.address,))) as client:
        good = submit(client, script, ["4"], array="1-5:2", cores=0, memory="32M")
        bad = submit(client, script, ["4"], array="1-2", cores=0, memory="32M")
        good.wait()
        with pytest.raises(JobFailed, match="1 of 2 runs failed") as failure:
            bad.wait()

    assert failure.value.exit_code == 4


def test_a_function_is_called_for_each_item(agent: RunningAgent) -> None:
    offset = 100

    def divide(item: int) -> float:
        return offset / item

    settings = ClientSettings(addresses=(agent.address,))
    futures = remote_map(divide, [1, 0, 4], cores=0, memory="64M", settings=settings)

    assert (futures[0].result(WAIT_S), futures[2].result(WAIT_S)) == (100, 25)
    with pytest.raises(ZeroDivisionError) as failure:
        futures[1].result(WAIT_S)
    assert isinstance(failure.value.__cause__, RemoteTraceback)
    assert "in divide" in failure.value.__cause__.text
    assert remote_map(divide, [], settings=settings).results() == []


def test_calls_have_results_although_the_job_ends_between_two_reads(agent: RunningAgent) -> None:
    with relaying(agent) as address:
        futures = remote_map(abs, [-3], cores=0, memory="64M", settings=ClientSettings(addresses=(address,)))

        assert futures[0].result(WAIT_S) == 3


def read_status(job_url: str) -> object:
    with urllib.request.urlopen(job_url, timeout=WAIT_S) as reply:
        return json.load(reply)["Status"]


@contextmanager
def relaying(agent: RunningAgent) -> Iterator[str]:
    """Yield the address of a server that passes requests on. It holds its first list of allocations until the job is dead."""
    lists_to_hold = [None]

    class Relay(BaseHTTPRequestHandler):
        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = urllib.request.Request(agent.address + self.path, body or None, method=self.command)
            request.add_header("Content-Type", "application/json")
            try:
                reply = urllib.request.urlopen(request, timeout=WAIT_S)
            except urllib.error.HTTPError as error:
                reply = error
            with reply:
                content = reply.read()
            job_path, _, last = self.path.partition("?")[0].rpartition("/")
            if last == "allocations" and lists_to_hold:
                lists_to_hold.clear()
                wait_until(lambda: read_status(agent.address + job_path) == "dead", what="the job has ended")
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = pass_on  # noqa: N815  # The base class calls methods with these names.

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Relay) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_calls_are_canceled_and_report_programs_that_end_without_a_result(agent: RunningAgent) -> None:
    def end(code: int) -> None:
        if code < 0:
            os.read(os.pipe()[0], 1)  # It waits for ever.
        os._exit(code)

    settings = ClientSettings(addresses=(agent.address,))
    with connect(settings) as client:
        futures = remote_map(end, [7, -1], cores=0, memory="64M", settings=settings)
        with pytest.raises(RemoteError, match="has no result: main: Exit Code: 7"):
            futures[0].result(WAIT_S)
        assert futures[1].cancel()
        with pytest.raises(CancelledError):
            futures[1].result(WAIT_S)
        wait_until(lambda: client.jobs.read(futures.job_id).value.status == "dead", what="the job has ended")

        others = remote_map(end, [-1, -1, -1], max_running=1, cores=0, memory="64M", settings=settings)
        assert others[2].cancel()
        others.cancel()
        assert all(future.cancelled() for future in others)
        wait_until(lambda: client.jobs.read(others.job_id).value.status == "dead", what="the job was stopped")


def make_pipe_reader() -> Callable[[str], str]:
    """Return a function that returns what a test writes into a pipe; it waits for that.

    The function of a module would travel by its name, and the tests are not installed where it runs.
    """

    def read_pipe(path: str) -> str:
        with open(path) as pipe:
            return pipe.read()

    return read_pipe


def write_pipe(path: Path, text: str) -> None:
    """Write into a pipe as soon as a program reads from it."""

    def try_to_write() -> bool:
        try:
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ENXIO:  # Nobody reads yet.
                return False
            raise
        with os.fdopen(pipe, "w") as file:
            file.write(text)
        return True

    wait_until(try_to_write, what=f"a program reads from {path}")


def test_a_call_whose_program_was_stopped_has_the_result_of_its_next_run(agent: RunningAgent, tmp_path: Path) -> None:
    settings = ClientSettings(addresses=(agent.address,))
    os.mkfifo(tmp_path / "pipe")
    with connect(settings) as client:
        (future,) = remote_map(make_pipe_reader(), [str(tmp_path / "pipe")], cores=0, memory="64M", settings=settings)
        wait_until(lambda: future.alloc_id, what="the call has begun")
        first = future.alloc_id
        wait_until(lambda: client.allocations.read(first).value.client_status == "running", what="the program runs")
        (node,) = client.nodes.list().value
        client.nodes.set_eligibility(node.id, eligible=False)
        try:
            client.allocations.stop(first)
            wait_until(lambda: client.allocations.read(first).value.client_status == "complete", what="it was stopped")
            with pytest.raises(TimeoutError):
                future.result(1)
        finally:
            client.nodes.set_eligibility(node.id, eligible=True)
        write_pipe(tmp_path / "pipe", "done")

        assert future.result(WAIT_S) == "done"


def test_a_canceled_call_does_not_end_others_of_a_map_that_ends_with_its_first_failure(
    agent: RunningAgent, tmp_path: Path
) -> None:
    settings = ClientSettings(addresses=(agent.address,))
    pipes = [str(tmp_path / name) for name in ("first", "second")]
    for pipe in pipes:
        os.mkfifo(pipe)
    with connect(settings) as client:
        futures = remote_map(make_pipe_reader(), pipes, fail_fast=True, cores=0, memory="64M", settings=settings)
        wait_until(lambda: futures[0].alloc_id, what="the call has begun")

        assert futures[0].cancel()
        wait_until(
            lambda: client.allocations.read(futures[0].alloc_id).value.client_status.is_terminal, what="it has ended"
        )
        write_pipe(Path(pipes[1]), "done")

        assert futures[1].result(WAIT_S) == "done"


def test_a_call_that_takes_longer_than_its_time_limit_says_so(agent: RunningAgent, tmp_path: Path) -> None:
    settings = ClientSettings(addresses=(agent.address,))
    os.mkfifo(tmp_path / "pipe")

    (future,) = remote_map(
        make_pipe_reader(), [str(tmp_path / "pipe")], time="2s", cores=0, memory="64M", settings=settings
    )

    with pytest.raises(RemoteError, match=r"has no result: .*MaxRunDuration"):
        future.result(WAIT_S)


def test_what_cannot_travel_with_a_job_is_refused(agent: RunningAgent) -> None:
    settings = ClientSettings(addresses=(agent.address,))

    with pytest.raises(ValueError, match="pass paths of data"):
        remote_map(len, ["x" * 400_000], settings=settings)
    with pytest.raises(ValueError, match="pass lists of items"):
        remote_map(len, [""] * 10_001, settings=settings)
