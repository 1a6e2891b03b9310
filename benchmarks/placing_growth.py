"""What placing costs as fleets and work grow: plan, check and taking in, in one process, for each count of nodes and work.

`python -m benchmarks.placing_growth PICTURE.svg` draws it.
"""

import sys
import time
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from benchmarks.figures import Figure, Figures
from benchmarks.picture import Line, log_log
from benchmarks.scheduling import Cluster, a_job
from wharf.model.job import JobType

NODES: Final = (1_000, 10_000, 100_000)
ALLOCATIONS: Final = (1_000, 10_000, 100_000)
A_JOB: Final = 1_000


def measure() -> Figures:
    return {
        f"{allocations:,} allocations on {nodes:,} nodes": Figure(
            value=took_s, unit="s", note=f"{took_s / allocations * 1e6:.0f} us an allocation"
        )
        for nodes in NODES
        for allocations, took_s in _grown(nodes)
    }


def _grown(nodes: int) -> list[tuple[int, float]]:
    """Seconds of a processor until so many were placed, job after job, on one fleet."""
    cluster = Cluster(nodes)
    cluster.carry_out(replace(a_job(1, JobType.BATCH), id="first"))  # What is found out once is found out.
    taken: list[tuple[int, float]] = []
    took_s, placed = 0.0, 0
    for number in range(max(ALLOCATIONS) // A_JOB):
        job = replace(a_job(A_JOB, JobType.BATCH), id=f"job-{number}")
        began = time.process_time()
        cluster.carry_out(job)
        took_s, placed = took_s + time.process_time() - began, placed + A_JOB
        if placed in ALLOCATIONS:
            taken.append((placed, took_s))
    return taken


def draw(figures: Figures, file: Path) -> None:
    lines = []
    for nodes in NODES:
        points = [(float(count), figures[f"{count:,} allocations on {nodes:,} nodes"].value) for count in ALLOCATIONS]
        lines.append(Line(f"{nodes:,} nodes", points))
    file.write_text(log_log("Placing, in one process", lines, x="allocations", y="seconds of a processor"), "utf-8")


if __name__ == "__main__":
    measured = measure()
    for name, figure in measured.items():
        print(f"{name}: {figure.value:.2f} {figure.unit} ({figure.note})")
    if len(sys.argv) > 1:
        draw(measured, Path(sys.argv[1]))
