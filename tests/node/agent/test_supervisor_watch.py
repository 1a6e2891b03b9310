"""A task supervisor that does not answer is reported and replaced; its tasks continue."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.agent.processes import is_alive
from tests.node.sandbox.driver_harness import running_harness
from tests.waiting import wait_on_loop_until, wait_until
from wharf.node.agent.servers.node_events import NodeEventQueue
from wharf.node.agent.supervisor_watch import SupervisorSilenceLimits, SupervisorWatch
from wharf.node.processes import Process, find_process, read_stat_fields
from wharf.node.supervisor.client import SupervisorClient
from wharf.world import RealWorld, SimulatedWorld
from wharf.world.problem_file import read_problem

REPORTED = (
    "The task supervisor does not answer: no task starts or stops, and output waits, until it does or is replaced"
)
REPLACED = "Replaced the task supervisor, because it did not answer. Running tasks continue"
ANSWERS = "The task supervisor answers again"
QUICK = SupervisorSilenceLimits(check_interval_s=0.05, max_unreported_s=0.2, max_idle_s=0.4, max_busy_s=60)


def list_messages(events: NodeEventQueue) -> list[str]:
    return [event.message for event in events.pending_events or ()]


def test_a_stopped_supervisor_is_reported_and_replaced_and_its_tasks_continue(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_harness(tmp_path, is_raw=True) as harness:
            events = NodeEventQueue(RealWorld())
            await harness.start("runs", f"while [ ! -e {tmp_path}/end ]; do sleep 0.05; done; exit 7")
            stopped_pid = harness.client.pid
            os.kill(stopped_pid, signal.SIGSTOP)
            # Not before the stop: a supervisor that starts slowly would be reported too, and would answer again by itself.
            watch = asyncio.create_task(
                SupervisorWatch(RealWorld(), harness.client, events, tmp_path, limits=QUICK).run()
            )
            await wait_on_loop_until(lambda: read_problem(tmp_path), what="the problem is reported")
            await wait_on_loop_until(lambda: ANSWERS in list_messages(events), what="a supervisor answers again")

            assert list_messages(events) == [REPORTED, REPLACED, ANSWERS]
            assert not is_alive(stopped_pid)
            assert read_problem(tmp_path) == ""
            (tmp_path / "end").touch()
            assert (await harness.wait_ended("runs")).exit_code == 7
            watch.cancel()

    asyncio.run(test())


def test_a_supervisor_that_was_stopped_before_the_agent_connects_is_replaced(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_harness(tmp_path, is_raw=True) as harness:
            os.kill(harness.client.pid, signal.SIGSTOP)
            client = SupervisorClient(RealWorld(), tmp_path / "state", harness.node, harness)
            is_connected = asyncio.Event()

            async def on_connected() -> None:
                is_connected.set()

            client_task = asyncio.create_task(client.run(on_connected))
            watch = asyncio.create_task(
                SupervisorWatch(RealWorld(), client, NodeEventQueue(RealWorld()), tmp_path, limits=QUICK).run()
            )
            async with asyncio.timeout(30):
                await is_connected.wait()
            for task in (watch, client_task):
                task.cancel()

    asyncio.run(test())


class SilentSupervisor:
    """A supervisor that never answers, with a process of the test."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.is_silent = True
        self.kill_count = 0

    def request_answer(self) -> None:
        raise AssertionError("nothing is requested of a silent supervisor")

    def kill_process(self) -> bool:
        self.kill_count += 1
        return True


@pytest.mark.parametrize(("command", "limit_s"), [("while :; do :; done", 300), ("exec sleep 100", 30)])
def test_a_busy_supervisor_is_replaced_later_than_an_idle_one(tmp_path: Path, command: str, limit_s: int) -> None:
    with subprocess.Popen(["/bin/sh", "-c", command]) as program:
        try:
            now_s = 0.0
            process = wait_until(lambda: find_running(program.pid, command), what="the program runs")
            supervisor, world = SilentSupervisor(process), SimulatedWorld(1, lambda: now_s)
            watch = SupervisorWatch(world, supervisor, NodeEventQueue(world), tmp_path)
            while supervisor.kill_count == 0:
                now_s += 2
                watch.check()
        finally:
            program.kill()

    assert now_s == limit_s


def find_running(pid: int, command: str) -> Process | None:
    """Return the process as soon as it executes the command, and sleeps if that is what the command does."""
    fields = read_stat_fields(pid)
    return find_process(pid) if fields is not None and fields[0] == ("S" if "sleep" in command else "R") else None
