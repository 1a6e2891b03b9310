"""The cost of a fleet of nodes: how long it takes until all are ready, and what servers need while nothing happens.

A server and the fake nodes run in one agent, on SQLite. The processor time of the process `node` is that of all fake nodes
together. `python -m benchmarks.idle_fleet [NODES [SECONDS]]` sets the number of nodes and the time of the measurement.
"""

import json
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final

from benchmarks.agent_process import AgentProcess, measure_cpu_s, measure_memory_mb
from benchmarks.figures import Figure, Figures, print_table

NODES: Final = 5_000
IDLE_S: Final = 150.0
"""At least two requests for assignments of each node, which servers hold for a minute."""
MAX_READY_S: Final = 600.0
SETTLE_S: Final = 10.0
ROLES: Final = ("api", "brain", "store", "node")
MAX_READY_BY_NODES: Final = {5_000: 60.0, 10_000: 150.0}
"""The targets, in seconds on two cores."""
TARGET_IDLE_SHARE: Final = {"api": 10.5, "brain": 3.0}
"""Percent of a core for 5,000 nodes: five times the cost of 1,000 nodes before."""


def count_ready(agent: AgentProcess) -> int:
    with urllib.request.urlopen(f"{agent.url}/v1/nodes?stale", timeout=120) as reply:
        return sum(node["Status"] == "ready" for node in json.load(reply))


def measure_io_bytes(agent: AgentProcess) -> int:
    """Return the bytes that the api process has read and written: HTTP, its channel to the brain and its feed of the log."""
    (pid,) = agent.list_pids_of_role("api")
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["rchar"]) + int(fields["wchar"])


def measure_cpu_by_role(agent: AgentProcess) -> dict[str, float]:
    return {role: measure_cpu_s(agent.list_pids_of_role(role)) for role in ROLES}


def measure_fleet(nodes: int, idle_s: float) -> Figures:
    """Start an agent with this number of fake nodes, wait until all are ready, and measure what it needs while idle."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.monotonic()
        agent = AgentProcess(Path(folder), fake_nodes=nodes)
        try:
            while count_ready(agent) < nodes + 1:  # One is the agent's own node.
                assert time.monotonic() - began_s < MAX_READY_S, "the fleet was not ready in time"
                time.sleep(1.0)
            ready_s, ready_cpu_s = time.monotonic() - began_s, measure_cpu_by_role(agent)
            parts = ", ".join(f"{role} {cpu_s * 1_000 / nodes:.2f}" for role, cpu_s in ready_cpu_s.items())
            figures[f"{nodes:,} nodes ready"] = Figure(
                value=ready_s, unit="s", at_most=MAX_READY_BY_NODES.get(nodes), note=f"CPU ms per node: {parts}"
            )
            time.sleep(SETTLE_S)
            before_s, before_bytes, idle_from_s = measure_cpu_by_role(agent), measure_io_bytes(agent), time.monotonic()
            time.sleep(idle_s)
            after_s, after_bytes = measure_cpu_by_role(agent), measure_io_bytes(agent)
            idle_s = time.monotonic() - idle_from_s
            for role in ROLES:
                figures[f"idle CPU of {role}"] = Figure(
                    value=(after_s[role] - before_s[role]) / idle_s * 100,
                    unit="% of a core",
                    at_most=TARGET_IDLE_SHARE.get(role) if nodes == NODES else None,
                )
            for role in ROLES:
                figures[f"memory of {role}"] = Figure(
                    value=measure_memory_mb(agent.list_pids_of_role(role)), unit="MB (PSS)"
                )
            figures["read and written by api"] = Figure(
                value=(after_bytes - before_bytes) / idle_s / 1_000, unit="kB/s"
            )
            figures["nodes that are not ready afterwards"] = Figure(
                value=nodes + 1 - count_ready(agent), unit="nodes", at_most=0
            )
        finally:
            agent.stop()
    return figures


def measure() -> Figures:
    return measure_fleet(NODES, IDLE_S)


if __name__ == "__main__":
    node_count = int(sys.argv[1]) if len(sys.argv) > 1 else NODES
    print_table(measure_fleet(node_count, float(sys.argv[2]) if len(sys.argv) > 2 else IDLE_S))
