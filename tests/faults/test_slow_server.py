"""A server that is more than ten times too slow places allocations on a fleet. It loses no node.

A control group limits the processor time of the server, but not of the nodes. `STORM_NODES` sets the number of nodes; the limit
grows with it. The results are in docs/faults.md.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.agent.processes import RunningAgent
from tests.faults.test_storms import (
    ALLOCATIONS_PER_NODE,
    JOBS,
    NODES,
    count_running,
    list_allocations,
    list_node_statuses,
    running_fleet,
    start_jobs,
    start_server,
    write_server_config,
)
from tests.ports import free_ports
from tests.waiting import once_a_second, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.needs("processor_limits")]

PROCESSOR_SHARE: Final = 4e-5 * NODES
"""The processor cores that the server may use. It needs more than ten times as many while it places the allocations."""
ALL_CORES: Final = 64.0
PERIOD_US: Final = 100_000
GROUP_NAME: Final = "wharf-slow-server"
MAX_PLACEMENT_S: Final = 300.0
"""How long the fleet may take to start, and to run all allocations once the server is as fast as before."""
SLOW_S: Final = 120.0
"""How long the server is slow: longer than two deadlines of a heartbeat, which are 20 to 30 s for up to 500 nodes."""


class ProcessorLimit:
    """A control group that limits the processor time of its processes, in version 1 or 2 of control groups."""

    def __init__(self) -> None:
        root = Path("/sys/fs/cgroup")
        self._is_version_2 = (root / "cgroup.controllers").exists()
        self._folder = (root if self._is_version_2 else root / "cpu") / GROUP_NAME
        self._folder.mkdir(exist_ok=True)

    def add(self, pid: int) -> None:
        (self._folder / "cgroup.procs").write_text(str(pid))

    def set(self, cores: float) -> None:
        """Limit the processes to this number of cores; part of a core is allowed."""
        quota_us = max(1_000, round(cores * PERIOD_US))
        if self._is_version_2:
            (self._folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (self._folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self._folder / "cpu.cfs_quota_us").write_text(str(quota_us))

    def remove(self) -> None:
        """Remove the group. Its processes have ended."""
        self._folder.rmdir()


@contextmanager
def limiting(agent: RunningAgent) -> Iterator[ProcessorLimit]:
    """Put all processes of an agent into a control group, and remove it when they have ended."""
    limit = ProcessorLimit()
    for pid in (agent.process.pid, *agent.children()):
        limit.add(pid)
    try:
        yield limit
    finally:
        agent.process.kill()
        agent.process.wait()
        wait_until(lambda: remove(limit), what="the control group is empty")


def remove(limit: ProcessorLimit) -> bool:
    with suppress(OSError):
        limit.remove()
        return True
    return False


def test_a_server_that_is_ten_times_too_slow_loses_no_node(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    (port,) = free_ports(1)
    addresses = [f"http://127.0.0.1:{port}"]
    write_server_config(folder, "server", port, "")
    with ExitStack() as stack:
        agent = start_server(stack, folder)
        limit = stack.enter_context(limiting(agent))
        fleet = stack.enter_context(running_fleet(tmp_path, addresses))
        wait_until(
            once_a_second(lambda: list_node_statuses(addresses).count("ready") == NODES),
            what="all nodes are ready",
            within_s=MAX_PLACEMENT_S,
        )
        limit.set(PROCESSOR_SHARE)
        slow_until_s = time.monotonic() + SLOW_S
        threading.Thread(target=start_all_jobs, args=(agent,), daemon=True).start()
        wait_until(lambda: time.monotonic() >= slow_until_s, what="deadlines have passed", within_s=2 * SLOW_S)
        failed_requests = fleet.sum().failed_requests
        limit.set(ALL_CORES)
        expected = NODES * ALLOCATIONS_PER_NODE // JOBS * JOBS
        wait_until(
            once_a_second(lambda: count_running(addresses) == expected),
            what="all allocations run",
            within_s=MAX_PLACEMENT_S,
        )
        outages = agent.err.count("heartbeats cannot be received")
        print(
            f"{NODES} nodes, {PROCESSOR_SHARE:g} cores for {SLOW_S:g} s: {failed_requests} requests of nodes failed, "
            f"{outages} outages logged; all allocations ran "
            f"{time.monotonic() - slow_until_s:.0f} s later"
        )

        # Nodes of a large fleet wait so long that often none of their requests fails.
        assert outages > 0, "the server was not slow"
        assert list_node_statuses(addresses) == ["ready"] * NODES
        assert list(list_allocations(addresses).values()) == [("run", "running")] * expected
        assert "missed heartbeats" not in agent.err


def start_all_jobs(agent: RunningAgent) -> None:
    """Register the jobs. A request that times out is repeated; a second registration changes nothing."""
    while True:
        with suppress(OSError):
            start_jobs(agent)
            return
