"""`wharf squeue`: the jobs that wait and run, with Slurm's columns."""

from typing import TYPE_CHECKING, Any, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import Session
from wharf.cli.slurm.command import SlurmCommand, get_last_values
from wharf.cli.slurm.option_parser import Occurrence, OptionValue, SlurmOption
from wharf.cli.slurm.rows import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wharf.cli.slurm.selection import RowFilter

_FLAG: Final = OptionValue.NONE
SQUEUE_OPTIONS: Final = (
    SlurmOption("account", "A", help="only these accounts"),
    SlurmOption("all", "a", _FLAG, help="has no effect: every node pool is shown"),
    SlurmOption("array", "r", _FLAG, help="a line for each run of an array that has not begun"),
    SlurmOption("format", "o", help='columns, such as "%.18i %j %T"'),
    SlurmOption("Format", "O", help="columns by name, such as JobID,State%20"),
    SlurmOption("json", "", OptionValue.OPTIONAL, help="print the fields of Slurm's JSON"),
    SlurmOption("jobs", "j", OptionValue.REQUIRED, help="only these jobs, such as 4711,4712_3"),
    SlurmOption("long", "l", _FLAG, help="more columns"),
    SlurmOption("me", "", _FLAG, help="only your jobs"),
    SlurmOption("name", "n", help="only jobs with these names"),
    SlurmOption("noheader", "h", _FLAG, help="no line of titles"),
    SlurmOption("nodelist", "w", help="only these nodes"),
    SlurmOption("partition", "p", help="only these node pools"),
    SlurmOption("sort", "S", help="has no effect: the newest job is first"),
    SlurmOption("start", "", _FLAG, help="refused: `wharf job explain JOB` says what a job waits for"),
    SlurmOption("states", "t", help="states, such as PD,R or all; all waiting and running ones by default"),
    SlurmOption("user", "u", help="only jobs of these users"),
)


class SqueueCommand(SlurmCommand):
    """The command `squeue`."""

    slurm_options = SQUEUE_OPTIONS


@click.command(cls=SqueueCommand)
def squeue(session: Session, occurrences: tuple[Occurrence, ...]) -> None:
    """List batch jobs that wait and run, with Slurm's columns.

    It is `wharf job status` with other columns. The reason of a waiting job is that of `wharf job explain`.

    wharf squeue -u $USER
    """
    from wharf.cli.slurm.documents import build_squeue_document
    from wharf.cli.slurm.formats import (
        SACCT_FIELDS,
        SQUEUE_FORMAT,
        SQUEUE_LONG_FORMAT,
        FormatError,
        parse_named_format,
        parse_squeue_format,
        render_columns,
    )
    from wharf.cli.slurm.selection import MAX_JOBS, is_live, list_batch_jobs, read_rows, resolve_names

    values = get_last_values(occurrences)
    if "start" in values:
        raise CliError("--start: start times are not estimated: `wharf job explain JOB` says what a job waits for")
    filter = build_filter(values)
    try:
        if "Format" in values:
            columns = parse_named_format(values["Format"], SACCT_FIELDS)
        elif "format" in values:
            columns = parse_squeue_format(values["format"], cuts=True)
        else:
            columns = parse_squeue_format(SQUEUE_LONG_FORMAT if "long" in values else SQUEUE_FORMAT, cuts=False)
    except FormatError as error:
        raise CliError(f"--{'Format' if 'Format' in values else 'format'}: {error}") from error
    stubs = list_batch_jobs(session, filter, only_live=not filter.states)
    note = f"the newest {MAX_JOBS} of {len(stubs)} jobs; select others with -j, -n or -u"
    warnings = [note] if len(stubs) > MAX_JOBS else []
    for text in warnings:
        print_notice(f"note: {text}")
    filter = resolve_names(filter, stubs)
    rows = [row for row in read_rows(session, stubs) if filter.matches(row) and (filter.states or is_live(row))]
    rows = _add_reasons(session, expand_rows(rows) if "array" in values else rows)
    if "json" in values:
        print_document(build_squeue_document, "squeue", rows, session.now_ns(), warnings)
        return
    for line in render_columns(columns, rows, session.now_ns(), has_header="noheader" not in values):
        click.echo(line)


def print_document(
    build: "Callable[..., dict[str, Any]]", command: str, rows: "Sequence[Row]", now_ns: int, warnings: "Sequence[str]"
) -> None:
    """Print the lines of `squeue` or `sacct` as Slurm's JSON."""
    import json

    from wharf import __version__
    from wharf.contract.client.batch.submission import get_user_name

    client = {"user": get_user_name(), "command": command}
    click.echo(json.dumps(build(rows, now_ns, client=client, release=__version__, warnings=warnings), indent=2))


def build_filter(values: dict[str, str]) -> "RowFilter":
    """Return the filter of the options that `squeue`, `scancel` and `sacct` share. Raises CliError."""
    from wharf.cli.slurm.selection import RowFilter, parse_job_names, parse_states, split_list
    from wharf.contract.client.batch.submission import get_user_name

    users = split_list(values.get("user", ""))
    if "me" in values:
        users = frozenset((get_user_name(),))
    return RowFilter(
        names=tuple(parse_job_names(values.get("jobs", ""))),
        users=users,
        job_names=split_list(values.get("name", "")),
        partitions=split_list(values.get("partition", "")),
        accounts=split_list(values.get("account", "") or values.get("accounts", "")),
        nodes=split_list(values.get("nodelist", "")),
        states=parse_states(states) if (states := values.get("states", "") or values.get("state", "")) else frozenset(),
    )


def expand_rows(rows: "Iterable[Row]") -> list[Row]:
    """Return the lines with one for each run of an array that has not begun."""
    found: list[Row] = []
    for row in rows:
        if row.members:
            group = row.label.partition("[")[0]
            found += [
                row._replace(label=f"{group}[{index}]" if group else str(index), members=()) for index in row.members
            ]
        else:
            found.append(row)
    return found


def _add_reasons(session: Session, rows: list[Row]) -> list[Row]:
    """Return the lines with what waiting jobs wait for; a server explains only the first few."""
    from wharf.cli.job.follower import fetch_explanation_text
    from wharf.cli.slurm.selection import MAX_EXPLAINED

    unexplained = [row for row in rows if row.state == "PENDING" and not row.reason]  # Steps that wait have a reason.
    waiting = list(dict.fromkeys((row.job_id, row.namespace) for row in unexplained))
    reasons = {key: fetch_explanation_text(session, *key) for key in waiting[:MAX_EXPLAINED]}
    return [
        row._replace(
            reason=" ".join(reasons.get((row.job_id, row.namespace), "").split()).removeprefix(f"{row.job_id} ")
        )
        if row.state == "PENDING" and not row.reason
        else row
        for row in rows
    ]
