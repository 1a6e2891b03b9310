"""The whole server at work: batch jobs of 1,000 from register to committed, on 5,000 nodes in 50 racks, durable on SQLite.

Evaluations, summaries and one API replica are in the run. `python -m benchmarks.placing_whole 1000` places a million.
"""

import sys
from typing import Final

from benchmarks.agent_process import own_mb
from benchmarks.figures import Figure, Figures
from benchmarks.placing_cluster import a_job, placing_cluster

NODES: Final = 5_000
JOBS: Final = 100
COUNT: Final = 1_000


def measure(nodes: int = NODES, jobs: int = JOBS) -> Figures:
    allocations = jobs * COUNT
    with placing_cluster(nodes) as cluster:
        cluster.begin()
        placed_s, reads_ms = cluster.place(
            [a_job(f"bench-{number}", COUNT) for number in range(jobs)], count=allocations
        )
        used = cluster.used_us(allocations)
        memory_mb = own_mb(cluster.server.pids())
    reads_ms.sort()
    return {
        f"batch jobs of {COUNT:,}, {nodes:,} nodes: register to committed": Figure(
            value=allocations / placed_s, unit="allocations/s", at_least=16_000,
            note=f"{allocations:,} allocations in {placed_s:.1f} s; processors: {used}; the peer places 600/s",
        ),
        "reads meanwhile, 99th percentile": Figure(
            value=reads_ms[int(len(reads_ms) * 0.99)] if reads_ms else 0.0, unit="ms", at_most=20.0,
            note=f"one job, default consistency, {len(reads_ms)} reads",
        ),
        f"memory of all processes with {allocations:,} allocations": Figure(
            value=memory_mb, unit="MB", at_most=3_000.0 if allocations >= 1_000_000 else None
        ),
    }  # fmt: skip


if __name__ == "__main__":
    for name, figure in measure(jobs=int(sys.argv[1]) if len(sys.argv) > 1 else JOBS).items():
        print(f"{name}: {figure.value:.1f} {figure.unit} ({figure.note})")
