"""Runs of five steps on fake nodes: how many steps end in a second, and what 10,000 runs cost that wait for a person.

A server and the fake nodes run in one agent, on SQLite. `python -m benchmarks.runs [RUNS [NODES]]` sets the numbers. Processor time
depends less on other programs than durations do.
"""

import sys
import tempfile
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from benchmarks.agent_process import AgentProcess, measure_cpu_s
from benchmarks.figures import Figure, Figures, print_table
from benchmarks.placing_cluster import ServerCaller

RUNS: Final = 10_000
NODES: Final = 200
STEPS: Final = 5
CONNECTIONS: Final = 8
MAX_S: Final = 1_800.0
IDLE_S: Final = 60.0
SETTLE_S: Final = 5.0
ROLES: Final = ("brain", "store", "api", "node")


def make_run(name: str, *, is_gated: bool) -> dict[str, Any]:
    """Return a run of five steps: two of them run at the same time. With a gate, none begins before it is approved."""
    task = {"Name": "task", "Driver": "mock", "Config": {"run_for": "0s"}, "Resources": {"CPU": 10, "MemoryMB": 10}}
    needs = {"fetch": (), "train": ("fetch",), "check": ("fetch",), "ship": ("train", "check"), "report": ("ship",)}
    groups: list[dict[str, Any]] = [
        {"Name": group, "Tasks": [task], "Depends": [{"On": on} for on in own]} for group, own in needs.items()
    ]
    if is_gated:
        groups[0]["Gate"] = {"Ask": "begin?"}
    return {"ID": name, "Type": "batch", "TaskGroups": groups}


def register_runs(agent: AgentProcess, prefix: str, runs: int, *, is_gated: bool = False) -> float:
    """Register runs over several connections, and return the seconds that it took."""

    def register(first: int) -> None:
        caller = ServerCaller(agent)
        for number in range(first, runs, CONNECTIONS):
            caller.put("/v1/jobs", {"Job": make_run(f"{prefix}-{number}", is_gated=is_gated)})

    began_s = time.perf_counter()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(register, range(CONNECTIONS)))
    return time.perf_counter() - began_s


def wait_for_end(caller: ServerCaller, runs: int) -> None:
    """Wait until all runs have ended."""
    deadline_s = time.perf_counter() + MAX_S
    while caller.get("/v1/operator/state?stale")["Tables"].get("allocations", 0) < runs * STEPS:
        assert time.perf_counter() < deadline_s, "the runs did not end in time"
        time.sleep(0.5)
    query = urllib.parse.urlencode({"filter": 'Status != "dead"', "per_page": 1, "stale": ""})
    while caller.get(f"/v1/jobs?{query}"):
        assert time.perf_counter() < deadline_s, "the runs did not end in time"
        time.sleep(0.5)


def measure_cpu_by_role(agent: AgentProcess) -> dict[str, float]:
    return {role: measure_cpu_s(agent.list_pids_of_role(role)) for role in ROLES}


def measure_idle(agent: AgentProcess, idle_s: float) -> dict[str, float]:
    """Return the percent of a core that each process uses while nothing happens."""
    time.sleep(SETTLE_S)
    before_s, began_s = measure_cpu_by_role(agent), time.perf_counter()
    time.sleep(idle_s)
    after_s, took_s = measure_cpu_by_role(agent), time.perf_counter() - began_s
    return {role: (after_s[role] - before_s[role]) / took_s * 100 for role in ROLES}


def measure_runs(runs: int = RUNS, nodes: int = NODES, idle_s: float = IDLE_S) -> Figures:
    """Run an agent, let runs end, and let as many wait."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        agent = AgentProcess(Path(folder), fake_nodes=nodes)
        try:
            caller = ServerCaller(agent)
            used_s, began_s = measure_cpu_by_role(agent), time.perf_counter()
            registered_s = register_runs(agent, "run", runs)
            wait_for_end(caller, runs)
            took_s, after_s = time.perf_counter() - began_s, measure_cpu_by_role(agent)
            parts = ", ".join(f"{role} {(after_s[role] - used_s[role]) / runs / STEPS * 1e3:.2f}" for role in ROLES)
            figures[f"{runs:,} runs of {STEPS} steps"] = Figure(
                value=runs * STEPS / took_s, unit="steps/s", at_least=300.0,
                note=f"in {took_s:.0f} s, registered in {registered_s:.0f} s; CPU ms per step: {parts}",
            )  # fmt: skip
            idle = measure_idle(agent, idle_s)
            register_runs(agent, "waiting", runs, is_gated=True)
            waiting = measure_idle(agent, idle_s)
            for role in ROLES:
                figures[f"{runs:,} waiting runs: {role}"] = Figure(
                    value=max(0.0, waiting[role] - idle[role]), unit="% of a core",
                    at_most=1.0 if role == "brain" else None,
                    note=f"{waiting[role]:.2f} with them, {idle[role]:.2f} without",
                )  # fmt: skip
        finally:
            agent.stop()
    return figures


def measure() -> Figures:
    return measure_runs()


if __name__ == "__main__":
    run_count = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    print_table(measure_runs(run_count, int(sys.argv[2]) if len(sys.argv) > 2 else NODES))
