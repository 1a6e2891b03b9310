"""Storms: thousands of nodes lose their servers at the same moment and return. No node is declared down, and no allocation
is replaced.

`STORM_NODES=500` reduces the number of nodes; each has four allocations. The results are in docs/faults.md.
"""

import contextlib
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from benchmarks.agent_process import measure_cpu_s, measure_memory_mb
from tests.agent.processes import RunningAgent, role_of, running
from tests.cluster.engines.etcd_server import EtcdCluster, running_etcd
from tests.faults.fleet_process import FleetState
from tests.faults.reader import Reader, compute_p99
from tests.ports import free_ports
from tests.waiting import once_a_second, wait_until

pytestmark = pytest.mark.faults

NODES: Final = int(os.environ.get("STORM_NODES", "5000"))
FLEET_PROCESSES: Final = 4
ALLOCATIONS_PER_NODE: Final = 4
JOBS: Final = 20
OUTAGE_S: Final = float(os.environ.get("STORM_OUTAGE_SECONDS", "60"))
MAX_RETURN_S: Final = 60.0
"""All nodes must be back within this time after the servers are."""
MAX_READ_S: Final = 1.0
"""The 99th percentile of users' reads must be below this, for default reads and for stale ones. A read counts from the time at
which it was due, or, if the only server or the log was away then, from the time at which it was back."""
NO_LOG_TEXT: Final = "No cluster leader"
"""How a server refuses a default read that it cannot answer, because the log does not reply. The status is 500, as Nomad's."""
MAX_START_S: Final = 600.0
MIN_READING_S: Final = 20.0
"""How long users read at least during and after each storm, so that a percentile is meaningful."""
SETTLE_S: Final = 3.0
"""Nodes are back if none of them fails for this long."""


class Fleet:
    """The fake nodes of several processes."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._processes = processes
        self._states: list[FleetState | None] = [None] * len(processes)
        self._threads = [
            threading.Thread(target=self._read_states, args=(position, process), daemon=True)
            for position, process in enumerate(processes)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Close the pipes. The processes have ended."""
        for thread, process in zip(self._threads, self._processes, strict=True):
            thread.join()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _read_states(self, position: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None, "the output is a pipe"
        for line in process.stdout:
            self._states[position] = msgspec.json.decode(line, type=FleetState)

    def cut(self) -> None:
        """Close all connections of all nodes."""
        for process in self._processes:
            assert process.stdin is not None, "the input is a pipe"
            process.stdin.write(b"cut\n")
            process.stdin.flush()

    def sum(self) -> FleetState:
        states = [state for state in self._states if state is not None]
        return FleetState(
            nodes=sum(state.nodes for state in states),
            connected=sum(state.connected for state in states),
            failing=sum(state.failing for state in states),
            failed_requests=sum(state.failed_requests for state in states),
        )

    def is_back(self) -> bool:
        state = self.sum()
        return state.connected == NODES and state.failing == 0

    def wait_lost(self, within_s: float) -> None:
        wait_until(lambda: not self.is_back(), what="nodes notice the fault", within_s=within_s)

    def wait_back(self, what: str, *, within_s: float) -> float:
        """Wait until no node fails any more. Return how many seconds that took, without the time to be sure of it."""
        began_s = time.monotonic()
        back_since_s: list[float] = []

        def has_settled() -> bool:
            if not self.is_back():
                back_since_s.clear()
                return False
            back_since_s.append(time.monotonic())
            return back_since_s[-1] - back_since_s[0] >= SETTLE_S

        try:
            wait_until(has_settled, what=what, within_s=within_s + SETTLE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.sum()}") from None
        return back_since_s[0] - began_s


@contextmanager
def running_fleet(folder: Path, addresses: Sequence[str]) -> Iterator[Fleet]:
    processes = []
    with ExitStack() as stack:
        for number in range(FLEET_PROCESSES):
            count = NODES // FLEET_PROCESSES + (number < NODES % FLEET_PROCESSES)
            errors = stack.enter_context((folder / f"fleet-{number}.txt").open("wb"))
            command = [sys.executable, "-m", "tests.faults.fleet_process", f"fleet-{number}", str(count), *addresses]
            processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
            )  # fmt: skip
        fleet = Fleet(processes)
        try:
            yield fleet
        finally:
            for process in processes:
                process.kill()
                process.wait()
            fleet.close()


@contextmanager
def measure_reads(
    name: str, addresses: Sequence[str], problems: dict[str, object], *, is_log_away: bool = False
) -> Iterator[Reader]:
    """Read while the block runs, and print the times of the reads. `is_log_away`: whether default reads may be refused.

    Yields the reader of default reads. If reads of a kind were too slow or failed, their 99th percentile or their errors are
    added to `problems`. They are asserted after all storms.
    """
    path = "/v1/job/job-0/summary"
    default = Reader(addresses, path, refusal_text=NO_LOG_TEXT if is_log_away else "")
    readers = {"stale": Reader(addresses, f"{path}?stale"), "default": default}
    began_s = time.monotonic()
    try:
        yield default
        wait_until(lambda: time.monotonic() - began_s >= MIN_READING_S, what="enough reads", within_s=2 * MIN_READING_S)
    finally:
        for kind, reader in readers.items():
            took_s = reader.stop()
            p99_s = compute_p99(took_s)
            print(
                f"{name}: {len(took_s)} {kind} reads answered, {reader.refused_count} refused, {len(reader.errors)} failed; "
                f"median {statistics.median(took_s) * 1_000:.0f} ms, p99 {p99_s * 1_000:.0f} ms, "
                f"longest {max(took_s) * 1_000:.0f} ms",
                flush=True,
            )
            if p99_s >= MAX_READ_S:
                problems[f"{name}: 99th percentile of {kind} reads in seconds"] = p99_s
            if reader.errors:
                problems[f"{name}: {len(reader.errors)} failed {kind} reads"] = reader.errors[:10]


def write_server_config(folder: Path, name: str, port: int, engine: str) -> None:
    (folder / "wharf.toml").write_text(
        f'name = "{name}"\ndata_dir = "{folder}/data"\nlog_level = "info"\n[ports]\nhttp = {port}\n'
        f'[server]\nenabled = true\n[client]\nenabled = false\n{engine}[keyring]\nfile = "{folder.parent}/keyring.key"\n'
    )


def start_server(stack: ExitStack, folder: Path) -> RunningAgent:
    agent = stack.enter_context(running(folder, "agent", "--config", "wharf.toml"))
    agent.wait_ready()
    return agent


def read(addresses: Sequence[str], path: str) -> Any:
    """Return what the first server that answers returns."""
    for address in addresses:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=120)
            with contextlib.closing(connection):
                connection.request("GET", path)
                reply = connection.getresponse()
                text = reply.read()
                if reply.status == 200:
                    return json.loads(text)
    return None


def list_node_statuses(addresses: Sequence[str]) -> list[str]:
    return [node["Status"] for node in read(addresses, "/v1/nodes?stale") or ()]


def list_allocations(addresses: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the desired and the client status of each allocation, by its id."""
    listed = read(addresses, "/v1/allocations?stale&task_states=false") or ()
    return {each["ID"]: (each["DesiredStatus"], each["ClientStatus"]) for each in listed}


def start_jobs(server: RunningAgent) -> None:
    for number in range(JOBS):
        task = {"Name": "task", "Driver": "mock", "Resources": {"CPU": 100, "MemoryMB": 100}}
        count = NODES * ALLOCATIONS_PER_NODE // JOBS
        group = {"Name": "group", "Count": count, "Tasks": [task]}
        server.put("/v1/jobs", {"Job": {"ID": f"job-{number}", "Type": "service", "TaskGroups": [group]}})


def count_running(addresses: Sequence[str]) -> int:
    summaries = [read(addresses, f"/v1/job/job-{number}/summary?stale") for number in range(JOBS)]
    return sum(each["Summary"]["group"]["Running"] for each in summaries if each is not None)


class StormCluster:
    """A cluster with a running fleet and its allocations, as it was before the storms."""

    def __init__(self, addresses: Sequence[str], fleet: Fleet, agents: dict[str, RunningAgent]) -> None:
        self.addresses = addresses
        self.fleet = fleet
        self.agents = agents
        self.read_problems: dict[str, object] = {}
        """What users noticed, by storm and kind of read."""
        self._failed_before = 0
        began_s = time.monotonic()
        expected = NODES * ALLOCATIONS_PER_NODE // JOBS * JOBS
        wait_until(
            once_a_second(lambda: list_node_statuses(addresses).count("ready") == NODES),
            what="all nodes are ready",
            within_s=MAX_START_S,
        )
        print(f"{NODES} nodes ready after {time.monotonic() - began_s:.1f} s", flush=True)
        start_jobs(next(iter(agents.values())))
        wait_until(
            once_a_second(lambda: count_running(addresses) == expected),
            what="all allocations run",
            within_s=MAX_START_S,
        )
        print(f"{expected} allocations running after {time.monotonic() - began_s:.1f} s", flush=True)
        fleet.wait_back("all nodes wait for assignments", within_s=MAX_START_S)
        self._allocations = list_allocations(addresses)
        assert len(self._allocations) == expected

    def assert_unharmed(self, name: str, back_after_s: float) -> None:
        """Assert that no node was declared down and no allocation was changed."""
        state = self.fleet.sum()
        failed, self._failed_before = state.failed_requests - self._failed_before, state.failed_requests
        print(f"{name}: all {NODES} nodes back after {back_after_s:.1f} s, {failed} requests failed", flush=True)
        for agent in self.agents.values():
            for pid in agent.children():
                print(f"  {role_of(pid)}: {measure_cpu_s([pid]):.1f} s CPU, {measure_memory_mb([pid]):.0f} MB")
        assert list_node_statuses(self.addresses) == ["ready"] * NODES
        assert list_allocations(self.addresses) == self._allocations
        for agent in self.agents.values():
            assert "missed heartbeats" not in agent.err


def kill_server(agent: RunningAgent) -> None:
    """Kill the agent and all its processes with signal 9, and wait until they have ended."""
    pids = [*agent.children(), agent.process.pid]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    agent.wait_end()
    wait_until(lambda: not any(map(role_of, pids)), what="the server has ended")


def test_a_fleet_survives_a_restart_of_its_only_server(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    (port,) = free_ports(1)
    addresses = [f"http://127.0.0.1:{port}"]
    write_server_config(folder, "server", port, "")
    with ExitStack() as stack:
        first = start_server(stack, folder)
        fleet = stack.enter_context(running_fleet(tmp_path, addresses))
        cluster = StormCluster(addresses, fleet, {"server": first})

        name = "only server killed and started again"
        kill_server(first)
        fleet.wait_lost(within_s=30.0)
        second = start_server(stack, folder)
        with measure_reads(name, addresses, cluster.read_problems):  # While its only server is away, nobody can read.
            back_after_s = fleet.wait_back("all nodes are back", within_s=MAX_RETURN_S)
        cluster.agents = {"server": second}

        cluster.assert_unharmed(name, back_after_s)
        assert cluster.read_problems == {}


@pytest.mark.needs_program("etcd")
def test_a_fleet_survives_cut_connections_a_new_leader_and_an_outage_of_etcd(tmp_path: Path) -> None:
    names = ("one", "two", "three")
    ports = free_ports(len(names))
    addresses = [f"http://127.0.0.1:{port}" for port in ports]
    with (
        running_etcd(tmp_path / "etcd", options=("--quota-backend-bytes", "8000000000")) as etcd,
        ExitStack() as stack,
    ):
        engine = f'[state]\nengine = "etcd"\n[state.etcd]\nendpoints = ["{etcd.members[0].endpoint}"]\n'
        agents = {}
        for name, port in zip(names, ports, strict=True):
            (tmp_path / name).mkdir()
            write_server_config(tmp_path / name, name, port, engine)
            agents[name] = start_server(stack, tmp_path / name)
        fleet = stack.enter_context(running_fleet(tmp_path, addresses))
        cluster = StormCluster(addresses, fleet, agents)

        cut_all_connections(cluster)
        replace_leader(cluster, stack)
        take_etcd_away(cluster, etcd)

        assert cluster.read_problems == {}


def cut_all_connections(cluster: StormCluster) -> None:
    name = "all connections cut"
    with measure_reads(name, cluster.addresses, cluster.read_problems):
        cluster.fleet.cut()
        cluster.fleet.wait_lost(within_s=30.0)
        back_after_s = cluster.fleet.wait_back("all nodes are back", within_s=MAX_RETURN_S)
    cluster.assert_unharmed(name, back_after_s)


def replace_leader(cluster: StormCluster, stack: ExitStack) -> None:
    """Kill the server that leads, wait until another one leads, and start it again."""
    name = "leader killed"
    leader_address = read(cluster.addresses, "/v1/status/leader")
    leader = next(each for each, agent in cluster.agents.items() if agent.address.endswith(leader_address))
    folder = cluster.agents[leader].folder
    others = [agent.address for each, agent in cluster.agents.items() if each != leader]
    with measure_reads(name, others, cluster.read_problems):
        kill_server(cluster.agents.pop(leader))
        cluster.fleet.wait_lost(within_s=30.0)
        back_after_s = cluster.fleet.wait_back("all nodes are back", within_s=MAX_RETURN_S)
    cluster.assert_unharmed(name, back_after_s)
    cluster.agents[leader] = start_server(stack, folder)


def take_etcd_away(cluster: StormCluster, etcd: EtcdCluster) -> None:
    name = f"etcd away for {OUTAGE_S:.0f} s"
    (member,) = etcd.members
    with measure_reads(name, cluster.addresses, cluster.read_problems, is_log_away=True) as default_reads:
        with default_reads.cannot_be_answered():
            member.kill()
            outage_ends_s = time.monotonic() + OUTAGE_S
            wait_until(lambda: time.monotonic() >= outage_ends_s, what="the outage ends", within_s=2 * OUTAGE_S)
            etcd.start(member)
        back_after_s = cluster.fleet.wait_back("all nodes are back", within_s=MAX_RETURN_S)
    cluster.assert_unharmed(name, back_after_s)
