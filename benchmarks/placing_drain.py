"""The whole server at work: 100 nodes that hold 20,000 allocations are drained at once, and all find a place elsewhere."""

import time
from typing import Final

from benchmarks.figures import Figure, Figures
from benchmarks.placing_cluster import a_job, node_id, placing_cluster

DRAINED: Final = 100
NODES: Final = 5_000
JOBS: Final = 20
COUNT: Final = 1_000
AT_ONCE: Final = -1


def measure() -> Figures:
    allocations = JOBS * COUNT
    with placing_cluster(DRAINED) as cluster:
        cluster.place([a_job(f"bench-{number}", COUNT, kind="service") for number in range(JOBS)], count=allocations)
        cluster.register_nodes(DRAINED, NODES)
        cluster.begin()
        began = time.perf_counter()
        for number in range(DRAINED):
            cluster.caller.put(f"/v1/node/{node_id(number)}/drain", {"DrainSpec": {"Deadline": AT_ONCE}})
        cluster.wait_for(2 * allocations, read="/v1/job/bench-0")
        took_s = time.perf_counter() - began
        used = cluster.used_us(allocations)
    return {
        f"drain of {DRAINED} nodes with {allocations:,} allocations: replacements placed": Figure(
            value=took_s, unit="s", at_most=5.0, note=f"from the first order on; processors: {used} a replacement"
        )
    }


if __name__ == "__main__":
    for name, figure in measure().items():
        print(f"{name}: {figure.value:.1f} {figure.unit} ({figure.note})")
