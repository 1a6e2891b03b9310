"""Filters: several common expressions over 10,000 jobs, and the time to parse and compile an expression."""

import statistics
import time
from collections.abc import Callable
from typing import Final

from benchmarks.figures import Figure, Figures
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobStatus, JobType
from wharf.languages.filters import compile_filter, parse_filter

JOB_COUNT: Final = 10_000
RUN_COUNT: Final = 15
THREE_TERMS: Final = 'Status == "running" and "dc1" in Datacenters and Meta.team == "payments"'
# Other common expressions, without a target.
EXPRESSIONS: Final = {
    "one term": 'Status == "running"',
    "three terms with a pattern": 'Type == "service" and Datacenters contains dc1 and Name matches "^web-[0-9]+5$"',
    "three terms, all evaluated": 'Type != "system" and Priority != 0 and Meta.team is not empty',
    "any group": 'any TaskGroups as g { g.Name == "api" and g.Count == 3 }',
}


def measure() -> Figures:
    jobs = [make_job(number) for number in range(JOB_COUNT)]
    figures = {
        "three terms over 10,000 jobs": Figure(
            value=_measure_filter_ms(THREE_TERMS, jobs), unit="ms", at_most=15, note="Nomad takes 120 ms"
        )
    }
    for name, text in EXPRESSIONS.items():
        figures[f"{name} over 10,000 jobs"] = Figure(value=_measure_filter_ms(text, jobs), unit="ms")
    figures["parse three terms"] = Figure(value=_measure_median_ms(lambda: parse_filter(THREE_TERMS)), unit="ms")
    compile_filter(THREE_TERMS, Job)
    figures["compile a cached filter"] = Figure(
        value=_measure_median_ms(lambda: compile_filter(THREE_TERMS, Job)), unit="ms"
    )
    return figures


def _measure_filter_ms(text: str, jobs: list[Job]) -> float:
    accepts = compile_filter(text, Job).accepts
    return _measure_median_ms(lambda: [job for job in jobs if accepts(job)])


def _measure_median_ms(function: Callable[[], object]) -> float:
    """Return the median milliseconds of a call of the function."""
    durations_ms = []
    for _ in range(RUN_COUNT):
        started_s = time.perf_counter()
        function()
        durations_ms.append((time.perf_counter() - started_s) * 1_000)
    return statistics.median(durations_ms)


def make_job(number: int) -> Job:
    """Return a job whose fields depend on its number, so that filters accept only some of the jobs."""
    return Job(
        id=f"web-{number}",
        name=f"web-{number}",
        type=JobType.BATCH if number % 4 == 0 else JobType.SERVICE,
        status=JobStatus.RUNNING if number % 10 else JobStatus.DEAD,
        priority=50,
        datacenters=("dc0", "dc1") if number % 3 else ("dc2",),
        meta={"team": "payments" if number % 2 else "search", "owner": "x"},
        task_groups=tuple(TaskGroup(name=name, count=3) for name in ("web", "api")),
    )
