"""`wharf seff`: how much of its cores and memory a batch job uses, as far as anything measures it."""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import ServerCommand, Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wharf.cli.slurm.rows import Row

MAX_RUNS: Final = 20
"""Runs of a job that one call shows; each that runs needs a request to its node."""
HISTORY: Final = "1h"
"""For how long nodes are asked for earlier measurements. They keep at most this much."""
NODE_TIMEOUT_S: Final = 5.0
"""A node that does not answer in this time measures nothing. Limits the wait for `MAX_RUNS` nodes."""
BYTES_PER_MB: Final = 1 << 20
NOT_STORED: Final = "unknown: servers do not store what an ended run used"
NOT_BEGUN: Final = "unknown: it has not begun"
NOT_MEASURED: Final = "unknown: its node measures nothing now"


class RunMeasurement(NamedTuple):
    """What a run has used in the last minutes, as its node measures it."""

    cpu_percent: float
    """The average, in percent of one core."""
    memory_mb: float
    """The maximum."""
    duration_ns: int


@click.command(cls=ServerCommand)
@click.argument("job", metavar="JOB")
def seff(session: Session, job: str) -> None:
    """Show how much of its cores and memory a batch job uses.

    Nodes measure a run while it runs; servers do not store what it used. So of a run that has ended, only the time, the
    cores and the requested memory are known. JOB is an id such as 4711, or an element of an array such as 4711_3.

    wharf seff 4711
    """
    from wharf.cli.slurm.selection import RowFilter, list_batch_jobs, parse_job_names, read_rows, resolve_names

    filter = RowFilter(names=tuple(parse_job_names(job)))
    stubs = list_batch_jobs(session, filter, only_live=False)
    filter = resolve_names(filter, stubs)
    rows = [row for row in read_rows(session, stubs) if filter.matches(row)]
    if len(rows) > MAX_RUNS:
        print_notice(f"note: the first {MAX_RUNS} of {len(rows)} runs; select others, such as {rows[0].job_id}_[40-49]")
    now_ns = session.now_ns()
    shown = [(row, _measure(session, row)) for row in rows[:MAX_RUNS]]
    document = [build_document(row, measured, now_ns) for row, measured in shown]
    session.print_result(document, lambda: "\n\n".join(render_run(row, measured, now_ns) for row, measured in shown))


def _measure(session: Session, row: "Row") -> RunMeasurement | None:
    """Return what a run uses; `None` if it does not run, or if its node does not say."""
    from wharf.contract.client import Unreachable
    from wharf.contract.model.refusal import Refusal

    if not row.alloc_id or row.end_ns or not row.start_ns:
        return None
    try:
        stats = session.client.allocations.stats(
            row.alloc_id, history=HISTORY, namespace=row.namespace, timeout_s=NODE_TIMEOUT_S
        )
    except (Refusal, Unreachable):
        return None
    return read_measurement(stats, row.start_ns)


def read_measurement(stats: "Any", start_ns: int) -> RunMeasurement | None:
    """Return what a run has used since its begin, of the measurements of its node; `None` if there are none."""
    samples = [each for each in stats.get("History") or () if each["Timestamp"] >= start_ns]
    if not samples:  # The first one is stored after some seconds.
        return _read_current(stats)
    times = [each["Timestamp"] for each in samples]
    return RunMeasurement(
        sum(each["Percent"] for each in samples) / len(samples),
        max(each["Memory"] for each in samples) / BYTES_PER_MB,
        max(times) - min(times),
    )


def _read_current(stats: "Any") -> RunMeasurement | None:
    """Return what a run uses now; `None` if its driver measures nothing."""
    if not stats.get("Tasks"):
        return None
    usage = stats["ResourceUsage"]
    memory = usage["MemoryStats"]
    return RunMeasurement(usage["CpuStats"]["Percent"], (memory["Usage"] or memory["RSS"]) / BYTES_PER_MB, 0)


def build_document(row: "Row", measured: RunMeasurement | None, now_ns: int) -> dict[str, Any]:
    """Return what is known about a run, for programs. What is not known is null."""
    elapsed_s = row.get_elapsed_ns(now_ns) / 1e9
    return {
        "JobID": row.id,
        "State": row.state,
        "ExitCode": row.exit_code,
        "Cores": row.cores,
        "WallClockSeconds": round(elapsed_s, 3),
        "CoreSeconds": round(elapsed_s * row.cores, 3),
        "RequestedMemoryMB": row.memory_mb,
        "CPUEfficiencyPercent": round(measured.cpu_percent / row.cores, 2) if measured else None,
        "MaxMemoryMB": round(measured.memory_mb, 2) if measured else None,
        "MemoryEfficiencyPercent": _get_memory_percent(row, measured),
        "MeasuredSeconds": round(measured.duration_ns / 1e9, 3) if measured else None,
    }


def _get_memory_percent(row: "Row", measured: RunMeasurement | None) -> float | None:
    return round(100 * measured.memory_mb / row.memory_mb, 2) if measured and row.memory_mb else None


def render_run(row: "Row", measured: RunMeasurement | None, now_ns: int) -> str:
    """Return the lines of a run, in the order of Slurm's `seff`."""
    from wharf.cli.slurm.formats import format_whole_elapsed

    elapsed_ns = row.get_elapsed_ns(now_ns)
    lines = [
        f"Job ID: {row.id}",
        f"Cluster: {row.region}",
        f"User: {row.user or 'unknown'}",
        f"State: {row.state}" + (f" (exit code {_describe_exit(row.exit_code)})" if row.end_ns else ""),
        f"Nodes: {1 if row.node else 0}",
        f"Cores: {row.cores}",
        *_render_cpu(row, measured, elapsed_ns),
        f"Job Wall-clock time: {format_whole_elapsed(elapsed_ns)}",
        *_render_memory(row, measured),
    ]
    return "\n".join(lines)


def _render_cpu(row: "Row", measured: RunMeasurement | None, elapsed_ns: int) -> "Sequence[str]":
    from wharf.cli.slurm.formats import format_whole_elapsed
    from wharf.contract.model.times import format_rounded_duration

    wall = f"{format_whole_elapsed(elapsed_ns * row.cores)} core-walltime"
    if measured is None:
        return (f"CPU Utilized: {_explain_unknown(row)}", f"CPU Efficiency: unknown of {wall}")
    span = f"on average of the last {format_rounded_duration(measured.duration_ns)}" if measured.duration_ns else "now"
    return (
        f"CPU Utilized: {measured.cpu_percent / 100:.2f} cores, {span}",
        f"CPU Efficiency: {measured.cpu_percent / row.cores:.2f}% of {row.cores} core{'s' if row.cores > 1 else ''}",
    )


def _render_memory(row: "Row", measured: RunMeasurement | None) -> "Sequence[str]":
    requested = f"{row.memory_mb:,} MB"
    if measured is None:
        return (f"Memory Utilized: {_explain_unknown(row)}", f"Memory Efficiency: unknown of {requested}")
    percent = _get_memory_percent(row, measured)
    return (
        f"Memory Utilized: {measured.memory_mb:,.2f} MB at most",
        f"Memory Efficiency: {'unknown' if percent is None else f'{percent:.2f}%'} of {requested}",
    )


def _explain_unknown(row: "Row") -> str:
    if not row.start_ns:
        return NOT_BEGUN
    return NOT_STORED if row.end_ns else NOT_MEASURED


def _describe_exit(exit_code: str) -> str:
    code, _, signal = exit_code.partition(":")
    return f"0, signal {signal}" if signal != "0" else code
