"""`wharf scancel`: stops jobs, or elements of an array, named as in Slurm."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import Session
from wharf.cli.slurm.command import SlurmCommand, get_last_values
from wharf.cli.slurm.option_parser import Occurrence, OptionValue, SlurmOption

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wharf.cli.slurm.rows import Row
    from wharf.cli.slurm.selection import JobSelector, RowFilter
    from wharf.contract.wire.jobs.messages import JobStub

_FLAG: Final = OptionValue.NONE
SCANCEL_OPTIONS: Final = (
    SlurmOption("account", "A", help="only jobs of these accounts"),
    SlurmOption("batch", "b", _FLAG, help="has no effect: a signal goes to the script"),
    SlurmOption("full", "f", _FLAG, help="has no effect: a signal goes to the script"),
    SlurmOption("me", "", _FLAG, help="only your jobs"),
    SlurmOption("name", "n", help="only jobs with these names"),
    SlurmOption("partition", "p", help="only these node pools"),
    SlurmOption("quiet", "Q", _FLAG, help="print nothing"),
    SlurmOption("signal", "s", help="send this signal to running scripts, and stop nothing"),
    SlurmOption("state", "t", help="only jobs in these states: PENDING, RUNNING"),
    SlurmOption("user", "u", help="only jobs of these users"),
    SlurmOption("verbose", "v", _FLAG, help="has no effect: each job is printed"),
)
SELECTING: Final = frozenset({"account", "me", "name", "partition", "state", "user"})
"""Options that select jobs without their ids."""
TERM_WAIT_S: Final = 10.0
"""How long a run that was asked to end may take before it is killed."""


class ScancelCommand(SlurmCommand):
    """The command `scancel`."""

    slurm_options = SCANCEL_OPTIONS


@click.command(cls=ScancelCommand)
@click.argument("jobs", metavar="JOB...", nargs=-1)
def scancel(session: Session, jobs: tuple[str, ...], occurrences: tuple[Occurrence, ...]) -> None:
    """Stop batch jobs, or elements of an array.

    JOB is an id such as 4711, one element of an array (4711_3) or several (4711_[1-5]). It is `wharf job stop` for a whole job,
    and `wharf alloc signal` with --signal.

    wharf scancel 4711 4712_[1-5]
    """
    from wharf.cli.slurm.selection import list_batch_jobs, parse_job_names, resolve_names
    from wharf.cli.slurm.squeue import build_filter

    values = get_last_values(occurrences)
    names = tuple(name for word in jobs for name in parse_job_names(word))
    if not names and not SELECTING & values.keys():
        raise CliError("missing job: name one, or select jobs with --me, -u, -n, -p or -t")
    filter = build_filter(values)._replace(names=names)
    is_quiet = "quiet" in values
    stubs = list_batch_jobs(session, filter, only_live=not names)
    filter = resolve_names(filter, stubs)
    if "signal" in values:
        lines = _send_signals(session, filter, stubs, values["signal"])
    else:
        lines = _stop(session, filter, stubs)
        if not lines and not is_quiet:
            print_notice("note: no job that waits or runs was selected, so nothing was stopped")
    for line in lines if not is_quiet else ():
        click.echo(line)


def _stop(session: Session, filter: "RowFilter", stubs: "list[JobStub]") -> list[str]:
    """Stop what the filter selects, and return a line for each job."""
    from wharf.cli.slurm.selection import is_live, read_rows
    from wharf.cli.slurm.squeue import expand_rows

    by_job: dict[str, list[JobSelector]] = {}
    for name in filter.names:  # Resolved by the caller.
        by_job.setdefault(name.job_id, []).append(name)
    selects_runs = bool(filter.states or filter.accounts)
    lines: list[str] = []
    for stub in stubs:
        names = by_job.get(stub.id, ())
        is_whole = not names or any(name.indexes is None for name in names)
        if stub.status == "dead":
            lines.append(f"job {stub.id} has ended already")
        elif is_whole and not selects_runs:
            session.client.jobs.deregister(stub.id, namespace=stub.namespace)
            lines.append(f"stopped job {stub.id}")
        else:
            live = [row for row in expand_rows(read_rows(session, [stub])) if is_live(row)]
            rows = [row for row in live if filter.matches(row)]
            if rows:
                lines += _stop_rows(session, stub, rows, live, is_whole=is_whole)
            elif not is_whole:
                lines.append(_describe_missing(session, stub, names))
    return lines


def _stop_rows(session: Session, stub: "JobStub", rows: "list[Row]", live: "list[Row]", *, is_whole: bool) -> list[str]:
    """Stop elements of a job, or the job if no other one waits or runs. Returns what was done."""
    if len(live) == len(rows):
        session.client.jobs.deregister(stub.id, namespace=stub.namespace)
        return [f"stopped job {stub.id}" + ("" if is_whole else ": no other element of it waits or runs")]
    return stop_elements(session, stub, rows)


def _describe_missing(session: Session, stub: "JobStub", names: "Iterable[JobSelector]") -> str:
    """Return why none of the elements that the user named can be stopped."""
    from wharf.cli.slurm.rows import find_index
    from wharf.contract.model.jobs.array_attempts import format_indexes

    groups = session.client.jobs.read(stub.id, namespace=stub.namespace).value.groups
    if any(name.step is not None for name in names):
        return f"job {stub.id} has no such element of a step that waits or runs: `wharf sacct -j {stub.id}` lists them"
    if len(groups) != 1 or groups[0].array is None:
        return f"job {stub.id} is not an array, so it has no elements: `wharf scancel {stub.id}` stops the whole job"
    indexes = sorted({index for name in names for index in name.indexes or ()})
    unknown = [index for index in indexes if find_index(groups[0], str(index)) is None]
    if unknown:
        return f"job {stub.id} has no element {format_indexes(unknown)}: `wharf sacct -j {stub.id}` lists its elements"
    label = str(indexes[0]) if len(indexes) == 1 else f"[{format_indexes(indexes)}]"
    return f"{stub.id}_{label} has ended already"


def stop_elements(session: Session, stub: "JobStub", rows: "list[Row]") -> list[str]:
    """End the runs that have begun by signals, cancel those that have not, and return what was done.

    The former fail, because their program was ended, and do not run again.
    """
    started = [row for row in rows if row.alloc_id]
    if waiting := [row for row in rows if not row.alloc_id]:
        _cancel_waiting(session, stub, waiting)
    for row in started:
        session.client.allocations.signal(row.alloc_id, "SIGTERM", namespace=row.namespace)
    for row in _wait_for_ends(session, stub, started):
        session.client.allocations.signal(row.alloc_id, "SIGKILL", namespace=row.namespace)
    return [f"stopped {row.id}" for row in rows]


def _cancel_waiting(session: Session, stub: "JobStub", rows: "list[Row]") -> None:
    """Cancel runs that have not begun. Raises CliError if they are not elements of an array."""
    from wharf.cli.slurm.rows import find_index
    from wharf.contract.model.jobs.array_attempts import format_indexes

    job = session.client.jobs.read(stub.id, namespace=stub.namespace).value
    arrays = [group for group in job.groups if group.array is not None]
    if len(arrays) != 1 or len(job.groups) != 1:
        raise CliError(
            f"{rows[0].id} has not begun and is not part of an array, so it cannot be stopped alone: `wharf scancel {stub.id}` "
            "stops the whole job; nothing was stopped"
        )
    indexes = sorted(index for row in rows if (index := find_index(arrays[0], row.label)) is not None)
    session.client.jobs.stop_elements(stub.id, format_indexes(indexes), namespace=stub.namespace)


def _wait_for_ends(session: Session, stub: "JobStub", rows: "list[Row]") -> "list[Row]":
    """Wait until the runs have ended, at most `TERM_WAIT_S`, and return those that have not."""
    response = session.client.jobs.allocations(stub.id, namespace=stub.namespace)
    deadline_s = session.world.monotonic_s() + TERM_WAIT_S
    while True:
        ended = {each.id for each in response.value if each.client_status.is_terminal}
        left = [row for row in rows if row.alloc_id not in ended]
        rest_s = deadline_s - session.world.monotonic_s()
        if not left or rest_s <= 0:
            return left
        response = session.client.jobs.allocations(
            stub.id, namespace=stub.namespace, index=response.index, wait_s=min(rest_s, 1.0)
        )


def _send_signals(session: Session, filter: "RowFilter", stubs: "list[JobStub]", name: str) -> list[str]:
    """Send a signal to the running scripts that the filter selects."""
    from wharf.cli.slurm.amounts import SlurmValueError, parse_signal
    from wharf.cli.slurm.selection import read_rows

    try:
        signal, _ = parse_signal(name)
    except SlurmValueError as error:
        raise CliError(f"--signal {name}: {error}") from error
    lines = []
    for row in read_rows(session, stubs):
        if filter.matches(row) and row.state == "RUNNING":
            session.client.allocations.signal(row.alloc_id, signal, namespace=row.namespace)
            lines.append(f"sent {signal} to {row.id}")
    return lines or ["no script of the selected jobs runs, so no signal was sent"]
