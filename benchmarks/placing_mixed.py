"""A whole server places 200 jobs of 50 on 5,000 nodes. One job in five has constraints, affinities and a spread."""

from typing import Any, Final

from benchmarks.figures import Figure, Figures
from benchmarks.placing_cluster import make_job, run_placing_cluster

NODE_COUNT: Final = 5_000
JOB_COUNT: Final = 200
ALLOCATIONS_PER_JOB: Final = 50
PLAIN_JOBS_PER_MIXED_JOB: Final = 5
PLACEMENT_RULES: Final[dict[str, Any]] = {
    "Constraints": [{"LTarget": "${meta.size}", "RTarget": "small", "Operand": "!="}],
    "Affinities": [{"LTarget": "${meta.rack}", "RTarget": "rack-7", "Operand": "=", "Weight": 30}],
    "Spreads": [{"Attribute": "${meta.rack}", "Weight": 50}],
}


def measure() -> Figures:
    """Register the jobs, and measure until all their allocations are committed."""
    jobs = [
        make_job(
            f"bench-{number}",
            ALLOCATIONS_PER_JOB,
            kind="service",
            **({} if number % PLAIN_JOBS_PER_MIXED_JOB else PLACEMENT_RULES),
        )
        for number in range(JOB_COUNT)
    ]
    with run_placing_cluster(NODE_COUNT) as cluster:
        cluster.reset_cpu_usage()
        placed_s, _ = cluster.place_jobs(jobs, count=JOB_COUNT * ALLOCATIONS_PER_JOB)
        used = cluster.format_cpu_usage(JOB_COUNT * ALLOCATIONS_PER_JOB)
    return {
        f"{JOB_COUNT} jobs of {ALLOCATIONS_PER_JOB}, one in {PLAIN_JOBS_PER_MIXED_JOB} with placement rules: registration to commit": Figure(
            value=JOB_COUNT * ALLOCATIONS_PER_JOB / placed_s, unit="allocations/s", at_least=10_000,
            note=f"in {placed_s:.2f} s, one client; CPU time per allocation: {used}; Nomad: 660/s",
        )
    }  # fmt: skip


if __name__ == "__main__":
    for name, figure in measure().items():
        print(f"{name}: {figure.value:.1f} {figure.unit} ({figure.note})")
