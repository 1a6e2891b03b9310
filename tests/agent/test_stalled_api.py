"""Api processes are killed, stopped and kept busy, and whole servers suspended, while nodes run work and clients write.

No node is declared down, no allocation is replaced, and no acknowledged write is lost.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final, TypeAlias

import pytest

from tests.agent.processes import RunningAgent, running
from tests.waiting import wait_until
from wharf.contract.client import ClientSettings, Unreachable, connect
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.refusal import Refusal

FAKE_NODES: Final = 20
COUNT: Final = 40
JOB: Final = {
    "Job": {
        "ID": "steady",
        "TaskGroups": [
            {
                "Name": "g",
                "Count": COUNT,
                "Tasks": [{"Name": "t", "Driver": "mock", "Resources": {"CPU": 50, "MemoryMB": 20}}],
            }
        ],
    }
}
DURATION_S: Final = 120.0
"""How long the long tests disturb the api processes."""
BUSY_S: Final = 7
"""How long the signal keeps an api process busy. A node is down after at most 6 s without a heartbeat."""
DONE_FILE: Final = "done"
SIGNAL_HANDLER: Final = f"""
import pathlib, signal, time

def work(*_):
    end_s = time.monotonic() + {BUSY_S}
    while time.monotonic() < end_s:
        pass
    pathlib.Path(__file__).with_name("{DONE_FILE}").touch()

signal.signal(signal.SIGUSR2, work)
"""
"""A module that Python imports at its start. SIGUSR2 then blocks the event loop of a process, as a costly request does."""


@contextmanager
def running_agent(folder: Path, *, api_processes: int) -> Iterator[RunningAgent]:
    """Run a server with one node and fake nodes, whose heartbeats are due much sooner than by default."""
    (folder / "start").mkdir()
    (folder / "start" / "sitecustomize.py").write_text(SIGNAL_HANDLER)
    (folder / "wharf.toml").write_text(
        f'data_dir = "{folder}/data"\n[ports]\nhttp = 0\n[api]\nprocesses = {api_processes}\n'
        '[server]\nenabled = true\nmin_heartbeat_ttl = "1s"\nheartbeat_grace = "4s"\n'
        f"[client]\nenabled = true\nfake_nodes = {FAKE_NODES}\n"
    )
    environment = {"PYTHONPATH": str(folder / "start")}
    with running(folder, "agent", "--config", "wharf.toml", environment=environment) as agent:
        agent.wait_ready()
        wait_until(lambda: count_ready_nodes(agent) == FAKE_NODES + 1, what="all nodes are ready")
        agent.put("/v1/jobs", JOB)
        wait_until(lambda: len(list_running_ids(agent)) == COUNT, what="the job runs")
        yield agent


def count_ready_nodes(agent: RunningAgent) -> int:
    nodes: Any = agent.get("/v1/nodes")
    return sum(node["Status"] == "ready" for node in nodes)


def list_running_ids(agent: RunningAgent) -> list[str]:
    allocations: Any = agent.get("/v1/job/steady/allocations")
    return sorted(each["ID"] for each in allocations if each["ClientStatus"] == "running")


def list_all_ids(agent: RunningAgent) -> list[str]:
    allocations: Any = agent.get("/v1/job/steady/allocations")
    return sorted(each["ID"] for each in allocations)


class Writer:
    """Writes namespaces one after another on a thread, and remembers which ones were acknowledged."""

    def __init__(self, agent: RunningAgent, name: str) -> None:
        self.acknowledged: list[str] = []
        self.failures: list[str] = []
        self._name = name
        self._settings = ClientSettings(addresses=(agent.address,))
        self._should_stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        with connect(self._settings) as client:
            while not self._should_stop.is_set():
                number += 1
                name = f"{self._name}-{number}"
                try:
                    client.namespaces.store(Namespace(name=name))
                    self.acknowledged.append(name)
                except (Refusal, Unreachable) as error:
                    self.failures.append(str(error))

    def wait_for_more(self, count: int) -> None:
        """Wait until this number of further writes are acknowledged."""
        goal = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= goal, what="clients write again")

    def stop(self) -> None:
        self._should_stop.set()
        self._thread.join()


def list_api_pids(agent: RunningAgent) -> list[int]:
    return sorted(pid for pid in map(agent.child, ("api", "api-1", "api-2")) if pid is not None)


Fault: TypeAlias = Callable[[RunningAgent, int], None]
"""Disturbs one api process, and returns when it serves again or is being replaced."""


def handles_signal(pid: int) -> bool:
    """Return whether the process has set the handler of `SIGNAL_HANDLER`."""
    with suppress(OSError):
        caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
        return bool(int(caught, 16) & 1 << (signal.SIGUSR2 - 1))
    return False


def is_serving(agent: RunningAgent) -> bool:
    with suppress(OSError):
        return bool(agent.get("/v1/status/leader"))
    return False


def kill(agent: RunningAgent, pid: int) -> None:
    """Kill an api process, and wait until its successor exists."""
    count = len(list_api_pids(agent))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_replaced(agent, pid, count), what="the api process was replaced")


def stop(agent: RunningAgent, pid: int) -> None:
    """Stop an api process. Its parent notices that it hangs, and replaces it."""
    count = len(list_api_pids(agent))
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: is_replaced(agent, pid, count), what="the stopped api process was replaced")


def keep_busy(agent: RunningAgent, pid: int) -> None:
    """Block the event loop of an api process for `BUSY_S`. It is not killed, because it uses CPU time."""
    done = agent.folder / "start" / DONE_FILE
    done.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR2)
    wait_until(done.exists, what="the api process has finished its work")
    assert pid in list_api_pids(agent)


def is_replaced(agent: RunningAgent, pid: int, count: int) -> bool:
    pids = list_api_pids(agent)
    return pid not in pids and len(pids) == count


def draw_faults(random: Random, duration_s: float) -> Iterator[Fault]:
    """Yield random faults until the time has passed."""
    end_s = time.monotonic() + duration_s
    while time.monotonic() < end_s:
        yield random.choice((kill, stop, keep_busy))


def disturb(agent: RunningAgent, faults: Iterable[Fault], random: Random) -> None:
    """Apply the faults to the api processes in turn while two clients write. Check that nothing else is disturbed."""
    before, number = list_running_ids(agent), 0
    writers = [Writer(agent, name) for name in ("a", "b")]
    try:
        for fault in faults:
            number += 1
            wait_until(lambda: all(map(handles_signal, list_api_pids(agent))), what="all api processes run")
            pids = list_api_pids(agent)
            fault(agent, pids[number % len(pids)])
            wait_until(lambda: is_serving(agent), what="the server answers")
            writers[0].wait_for_more(1 + random.randrange(20))
    finally:
        for writer in writers:
            writer.stop()
    with connect(ClientSettings(addresses=(agent.address,))) as client:
        stored = {namespace.name for namespace in client.namespaces.list().value}
    acknowledged = {name for writer in writers for name in writer.acknowledged}
    failures = [failure for writer in writers for failure in writer.failures]
    print(f"{number} faults, {len(acknowledged)} acknowledged writes, {len(failures)} failed: {sorted(set(failures))}")

    assert acknowledged - stored == set()
    assert "nodes missed heartbeats" not in agent.err
    assert (count_ready_nodes(agent), list_running_ids(agent), list_all_ids(agent)) == (FAKE_NODES + 1, before, before)


def test_no_node_is_down_while_the_only_api_process_is_killed_stopped_or_busy(tmp_path: Path) -> None:
    with running_agent(tmp_path, api_processes=1) as agent:
        disturb(agent, [stop, kill, keep_busy], Random(1))

        assert agent.err.count("cause=killed: stopped, and no sign of life for 4 s") == 1
        # Two faults may be one outage, if the process was not ready again in between.
        assert agent.err.count("heartbeats cannot be received") >= 1


@pytest.mark.faults
@pytest.mark.parametrize("api_processes", [1, 2])
def test_two_minutes_of_killed_stopped_and_busy_api_processes(tmp_path: Path, api_processes: int) -> None:
    random = Random(api_processes)
    with running_agent(tmp_path, api_processes=api_processes) as agent:
        disturb(agent, draw_faults(random, DURATION_S), random)


@pytest.mark.faults
def test_no_node_is_down_and_no_process_killed_after_the_machine_was_suspended(tmp_path: Path) -> None:
    with running_agent(tmp_path, api_processes=1) as agent:
        before, pids = list_running_ids(agent), [agent.process.pid, *agent.children()]
        began_s = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: time.monotonic() - began_s > 30.0, what="all processes were stopped for 30 s")
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

        with connect(ClientSettings(addresses=(agent.address,))) as client:
            resumed_s = time.monotonic()
            wait_until(lambda: time.monotonic() - resumed_s > 20.0, what="deadlines have passed")
            client.namespaces.store(Namespace(name="after"))

        assert "nodes missed heartbeats" not in agent.err
        assert "process ended; restarting it" not in agent.err
        assert (count_ready_nodes(agent), list_running_ids(agent)) == (FAKE_NODES + 1, before)
