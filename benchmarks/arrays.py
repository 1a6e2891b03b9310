"""An array on fake nodes: how many elements end in a second, and the processor time of each process for an element.

A server and the fake nodes run in one agent, on SQLite. `python -m benchmarks.arrays [ELEMENTS [NODES]]` sets the numbers. Processor
time depends less on other programs than durations do.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.agent_process import AgentProcess
from benchmarks.figures import Figure, Figures, print_table
from benchmarks.placing_cluster import ServerCaller
from benchmarks.runs import ROLES, measure_cpu_by_role

ELEMENTS: Final = 100_000
NODES: Final = 1_000
MAX_S: Final = 1_800.0
TARGET_PER_S: Final = 5_000.0


def make_sweep(elements: int) -> dict[str, Any]:
    task = {"Name": "task", "Driver": "mock", "Config": {"run_for": "0s"}, "Resources": {"CPU": 10, "MemoryMB": 10}}
    group = {"Name": "train", "Array": {"Size": elements}, "Tasks": [task]}
    return {"ID": "sweep", "Type": "batch", "TaskGroups": [group]}


def measure_array(elements: int = ELEMENTS, nodes: int = NODES) -> Figures:
    """Run an agent, and let the elements of one array end."""
    with tempfile.TemporaryDirectory() as folder:
        agent = AgentProcess(Path(folder), fake_nodes=nodes)
        try:
            caller = ServerCaller(agent)
            before_s, began_s = measure_cpu_by_role(agent), time.perf_counter()
            caller.put("/v1/jobs", {"Job": make_sweep(elements)})
            while caller.get("/v1/job/sweep?stale")["Status"] != "dead":
                assert time.perf_counter() - began_s < MAX_S, "the array did not end in time"
                time.sleep(0.25)
            took_s, after_s = time.perf_counter() - began_s, measure_cpu_by_role(agent)
            (array,) = caller.get("/v1/job/sweep/arrays")["Arrays"]
            assert array["Counts"]["Succeeded"] == elements, "every element has succeeded"
        finally:
            agent.stop()
    parts = ", ".join(f"{role} {(after_s[role] - before_s[role]) / elements * 1e6:.0f}" for role in ROLES)
    return {
        f"{elements:,} elements on {nodes:,} nodes": Figure(
            value=elements / took_s, unit="elements/s", at_least=TARGET_PER_S, note=f"CPU µs per element: {parts}"
        )
    }


def measure() -> Figures:
    return measure_array()


if __name__ == "__main__":
    element_count = int(sys.argv[1]) if len(sys.argv) > 1 else ELEMENTS
    print_table(measure_array(element_count, int(sys.argv[2]) if len(sys.argv) > 2 else NODES))
