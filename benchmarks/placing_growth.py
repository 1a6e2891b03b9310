"""The cost of placement for growing numbers of nodes and allocations: plan, check and apply, in one process.

`python -m benchmarks.placing_growth CHART.svg` also draws a chart.
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
    """Measure each number of allocations on each number of nodes."""
    return {
        f"{allocations:,} allocations on {nodes:,} nodes": Figure(
            value=cpu_s, unit="s", note=f"{cpu_s / allocations * 1e6:.0f} us per allocation"
        )
        for nodes in NODE_COUNTS
        for allocations, cpu_s in _measure_growth(nodes)
    }


def _measure_growth(nodes: int) -> list[tuple[int, float]]:
    """Place job after job. Return the CPU seconds that each number of `ALLOCATION_COUNTS` took, as (count, seconds)."""
    cluster = SchedulingCluster(nodes)
    cluster.place_job(replace(make_job(1, JobType.BATCH), id="first"))  # Fill the caches.
    durations: list[tuple[int, float]] = []
    cpu_s, placed = 0.0, 0
    for number in range(max(ALLOCATION_COUNTS) // ALLOCATIONS_PER_JOB):
        job = replace(make_job(ALLOCATIONS_PER_JOB, JobType.BATCH), id=f"job-{number}")
        started_s = time.process_time()
        cluster.place_job(job)
        cpu_s, placed = cpu_s + time.process_time() - started_s, placed + ALLOCATIONS_PER_JOB
        if placed in ALLOCATION_COUNTS:
            durations.append((placed, cpu_s))
    return durations


def write_chart(figures: Figures, file: Path) -> None:
    """Write a chart with one line for each number of nodes."""
    lines = []
    for nodes in NODE_COUNTS:
        points = [
            (float(count), figures[f"{count:,} allocations on {nodes:,} nodes"].value) for count in ALLOCATION_COUNTS
        ]
        lines.append(ChartLine(f"{nodes:,} nodes", points))
    file.write_text(render_log_log_chart("Placement in one process", lines, x="allocations", y="CPU seconds"), "utf-8")


if __name__ == "__main__":
    figures = measure()
    for name, figure in figures.items():
        print(f"{name}: {figure.value:.2f} {figure.unit} ({figure.note})")
    if len(sys.argv) > 1:
        write_chart(figures, Path(sys.argv[1]))
