"""Kills of a node's agent shortly after one another: the pause before each restart, and the start until tasks are recovered.

`python -m benchmarks.node_restarts [KILLS [TASKS]]`. Durations depend on the load of the machine, pauses do not.
"""

import os
import signal
import sys
import time
from typing import Final

from benchmarks.agent_process import measure_cpu_s
from benchmarks.figures import Figure, Figures, print_table
from benchmarks.node import (
    SUPERVISOR_CONNECTED_TEXT,
    NodeBenchmarkCluster,
    find_new_node_pid,
    make_job,
    run_cluster,
    wait_until,
)

KILL_COUNT: Final = 6
TASK_COUNT: Final = 50
POLL_S: Final = 0.005


def measure(*, kills: int = KILL_COUNT, tasks: int = TASK_COUNT) -> Figures:
    """Kill the node process `kills` times, each time as soon as it has recovered its tasks."""
    figures: Figures = {}
    with run_cluster() as cluster:
        cluster.send("PUT", "/v1/jobs", make_job("running", "/bin/sleep", "100000", count=tasks, kind="service"))
        wait_until(
            lambda: cluster.get("/v1/job/running/summary")["Summary"]["g"].get("Running") == tasks, 300, interval_s=0.2
        )
        began_s, total_s = time.perf_counter(), 0.0
        for number in range(1, kills + 1):
            pause_s, start_s, cpu_s = _kill(cluster)
            total_s += pause_s + start_s
            figures[f"node: kill {number}, pause before the restart"] = Figure(value=round(pause_s, 2), unit="s")
            note = f"{cpu_s:.2f} s of CPU time; load {os.getloadavg()[0]:.1f}"
            figures[f"node: kill {number}, start until tasks are recovered"] = Figure(
                value=round(start_s, 2), unit="s", note=note
            )
        figures[f"node: away during {kills} kills"] = Figure(
            value=round(total_s, 2), unit="s", note=f"within {time.perf_counter() - began_s:.0f} s"
        )
    return figures


def _kill(cluster: NodeBenchmarkCluster) -> tuple[float, float, float]:
    """Kill the node process. Return the pause, the duration of the start, and the CPU seconds of the start."""
    out = cluster.folder / "out.txt"
    old_count, node = out.read_text().count(SUPERVISOR_CONNECTED_TEXT), cluster.find_role_pid("node")
    os.kill(node, signal.SIGKILL)
    killed_s = time.perf_counter()
    wait_until(lambda: find_new_node_pid(cluster, node) is not None, 60, interval_s=POLL_S)
    spawned_s = time.perf_counter()
    wait_until(lambda: out.read_text().count(SUPERVISOR_CONNECTED_TEXT) > old_count, 60, interval_s=POLL_S)
    recovered_s = time.perf_counter()
    return spawned_s - killed_s, recovered_s - spawned_s, measure_cpu_s([cluster.find_role_pid("node")])


if __name__ == "__main__":
    arguments = list(map(int, sys.argv[1:]))
    print_table(
        measure(
            kills=arguments[0] if arguments else KILL_COUNT,
            tasks=arguments[1] if len(arguments) > 1 else TASK_COUNT,
        )
    )
