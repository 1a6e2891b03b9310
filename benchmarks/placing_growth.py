"""What placing costs as fleets and work grow: plan, check and taking in, in one process, for each count of nodes and work.

`python -m benchmarks.placing_growth PICTURE.svg` draws it.
"""

import sys
import time
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from benchmarks.chart import ChartLine, render_log_log_chart
from benchmarks.figures import Figure, Figures
from benchmarks.scheduling import SchedulingCluster, make_job
from wharf.contract.model.jobs.job import JobType

NODE_COUNTS: Final = (1_000, 10_000, 100_000)
ALLOCATION_COUNTS: Final = (1_000, 10_000, 100_000)
ALLOCATIONS_PER_JOB: Final = 1_000


def measure() -> Figures:
    return {
        f"{allocations:,} allocations on {nodes:,} nodes": Figure(
            value=took_s, unit="s", note=f"{took_s / allocations * 1e6:.0f} us an allocation"
        )
        for nodes in NODE_COUNTS
        for allocations, took_s in _grown(nodes)
    }


def _grown(nodes: int) -> list[tuple[int, float]]:
    """Seconds of a processor until so many were placed, job after job, on one fleet."""
    cluster = SchedulingCluster(nodes)
    cluster.place_job(replace(make_job(1, JobType.BATCH), id="first"))  # What is found out once is found out.
    taken: list[tuple[int, float]] = []
    took_s, placed = 0.0, 0
    for number in range(max(ALLOCATION_COUNTS) // ALLOCATIONS_PER_JOB):
        job = replace(make_job(ALLOCATIONS_PER_JOB, JobType.BATCH), id=f"job-{number}")
        began = time.process_time()
        cluster.place_job(job)
        took_s, placed = took_s + time.process_time() - began, placed + ALLOCATIONS_PER_JOB
        if placed in ALLOCATION_COUNTS:
            taken.append((placed, took_s))
    return taken


def write_chart(figures: Figures, file: Path) -> None:
    lines = []
    for nodes in NODE_COUNTS:
        points = [
            (float(count), figures[f"{count:,} allocations on {nodes:,} nodes"].value) for count in ALLOCATION_COUNTS
        ]
        lines.append(ChartLine(f"{nodes:,} nodes", points))
    file.write_text(
        render_log_log_chart("Placing, in one process", lines, x="allocations", y="seconds of a processor"), "utf-8"
    )


if __name__ == "__main__":
    measured = measure()
    for name, figure in measured.items():
        print(f"{name}: {figure.value:.2f} {figure.unit} ({figure.note})")
    if len(sys.argv) > 1:
        write_chart(measured, Path(sys.argv[1]))
