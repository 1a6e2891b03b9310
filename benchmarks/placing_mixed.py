"""The whole server at work: 200 jobs of 50 on 5,000 nodes, of which a fifth have constraints, affinities and spread."""

from typing import Any, Final

from benchmarks.figures import Figure, Figures
from benchmarks.placing_cluster import a_job, placing_cluster

NODES: Final = 5_000
JOBS: Final = 200
COUNT: Final = 50
ONE_IN: Final = 5
WISHES: Final[dict[str, Any]] = {
    "Constraints": [{"LTarget": "${meta.size}", "RTarget": "small", "Operand": "!="}],
    "Affinities": [{"LTarget": "${meta.rack}", "RTarget": "rack-7", "Operand": "=", "Weight": 30}],
    "Spreads": [{"Attribute": "${meta.rack}", "Weight": 50}],
}


def measure() -> Figures:
    jobs = [
        a_job(f"bench-{number}", COUNT, kind="service", **({} if number % ONE_IN else WISHES)) for number in range(JOBS)
    ]
    with placing_cluster(NODES) as cluster:
        cluster.begin()
        placed_s, _ = cluster.place(jobs, count=JOBS * COUNT)
        used = cluster.used_us(JOBS * COUNT)
    return {
        f"{JOBS} jobs of {COUNT}, one in {ONE_IN} with wishes: register to committed": Figure(
            value=JOBS * COUNT / placed_s, unit="allocations/s", at_least=10_000,
            note=f"in {placed_s:.2f} s, one caller registers them; processors: {used}; the peer places 660/s",
        )
    }  # fmt: skip


if __name__ == "__main__":
    for name, figure in measure().items():
        print(f"{name}: {figure.value:.1f} {figure.unit} ({figure.note})")
