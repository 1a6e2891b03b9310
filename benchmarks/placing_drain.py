"""A whole server drains 100 nodes with 20,000 allocations at the same time, and places all replacements."""

import time
from typing import Final

from benchmarks.figures import Figure, Figures
from benchmarks.placing_cluster import make_job, make_node_id, run_placing_cluster

DRAINED_NODE_COUNT: Final = 100
NODE_COUNT: Final = 5_000
JOB_COUNT: Final = 20
ALLOCATIONS_PER_JOB: Final = 1_000
FORCED_DEADLINE: Final = -1


def measure() -> Figures:
    """Fill the nodes, add empty ones, drain the full ones, and measure until all replacements are placed."""
    allocations = JOB_COUNT * ALLOCATIONS_PER_JOB
    with run_placing_cluster(DRAINED_NODE_COUNT) as cluster:
        cluster.place_jobs(
            [make_job(f"bench-{number}", ALLOCATIONS_PER_JOB, kind="service") for number in range(JOB_COUNT)],
            count=allocations,
        )
        cluster.register_nodes(DRAINED_NODE_COUNT, NODE_COUNT)
        cluster.reset_cpu_usage()
        started_s = time.perf_counter()
        for number in range(DRAINED_NODE_COUNT):
            cluster.caller.put(f"/v1/node/{make_node_id(number)}/drain", {"DrainSpec": {"Deadline": FORCED_DEADLINE}})
        cluster.wait_for_allocations(2 * allocations, read="/v1/job/bench-0")
        duration_s = time.perf_counter() - started_s
        used = cluster.format_cpu_usage(allocations)
    return {
        f"drain of {DRAINED_NODE_COUNT} nodes with {allocations:,} allocations: replacements placed": Figure(
            value=duration_s,
            unit="s",
            at_most=5.0,
            note=f"from the first drain request; CPU time per replacement: {used}",
        )
    }


if __name__ == "__main__":
    for name, figure in measure().items():
        print(f"{name}: {figure.value:.1f} {figure.unit} ({figure.note})")
