"""A whole server places batch jobs of 1,000 allocations on 5,000 nodes, from the registration to the durable commit.

This includes evaluations, job summaries and one api replica. `python -m benchmarks.placing_whole 1000` places a million.
"""

import sys
from typing import Final

from benchmarks.agent_process import measure_memory_mb
from benchmarks.figures import Figure, Figures
from benchmarks.placing_cluster import make_job, run_placing_cluster

NODE_COUNT: Final = 5_000
JOB_COUNT: Final = 100
ALLOCATIONS_PER_JOB: Final = 1_000


def measure(nodes: int = NODE_COUNT, jobs: int = JOB_COUNT) -> Figures:
    """Register the jobs, and measure the rate of allocations, the latency of reads, and the memory."""
    allocations = jobs * ALLOCATIONS_PER_JOB
    with run_placing_cluster(nodes) as cluster:
        cluster.reset_cpu_usage()
        placed_s, reads_ms = cluster.place_jobs(
            [make_job(f"bench-{number}", ALLOCATIONS_PER_JOB) for number in range(jobs)], count=allocations
        )
        used = cluster.format_cpu_usage(allocations)
        memory_mb = measure_memory_mb(cluster.server.list_pids())
    reads_ms.sort()
    return {
        f"batch jobs of {ALLOCATIONS_PER_JOB:,}, {nodes:,} nodes: registration to commit": Figure(
            value=allocations / placed_s, unit="allocations/s", at_least=16_000,
            note=f"{allocations:,} allocations in {placed_s:.1f} s; CPU time per allocation: {used}; Nomad: 600/s",
        ),
        "reads during placement, 99th percentile": Figure(
            value=reads_ms[int(len(reads_ms) * 0.99)] if reads_ms else 0.0, unit="ms", at_most=20.0,
            note=f"one job, default consistency, {len(reads_ms)} reads",
        ),
        f"memory of all processes with {allocations:,} allocations": Figure(
            value=memory_mb, unit="MB", at_most=3_000.0 if allocations >= 1_000_000 else None
        ),
    }  # fmt: skip


if __name__ == "__main__":
    for name, figure in measure(jobs=int(sys.argv[1]) if len(sys.argv) > 1 else JOB_COUNT).items():
        print(f"{name}: {figure.value:.1f} {figure.unit} ({figure.note})")
