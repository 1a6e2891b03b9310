"""`wharf sacct`: jobs that run and that have ended, as long as servers keep them, with Slurm's columns."""

from typing import Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import Session
from wharf.cli.slurm.command import SlurmCommand, get_last_values
from wharf.cli.slurm.option_parser import Occurrence, OptionValue, SlurmOption

_FLAG: Final = OptionValue.NONE
SACCT_OPTIONS: Final = (
    SlurmOption("accounts", "A", help="only these accounts"),
    SlurmOption("allocations", "X", _FLAG, help="has no effect: a run is one line"),
    SlurmOption("allusers", "a", _FLAG, help="jobs of all users, the default"),
    SlurmOption("brief", "b", _FLAG, help="the columns JobID, State and ExitCode"),
    SlurmOption("delimiter", "", help="what separates columns with -p or -P"),
    SlurmOption("endtime", "E", help="only runs that began before this time"),
    SlurmOption("format", "o", help="columns, such as JobID,State%20,Elapsed"),
    SlurmOption("helpformat", "e", _FLAG, help="print the names of the columns"),
    SlurmOption("json", "", OptionValue.OPTIONAL, help="print the fields of Slurm's JSON"),
    SlurmOption("jobs", "j", help="only these jobs, such as 4711,4712_3"),
    SlurmOption("me", "", _FLAG, help="only your jobs"),
    SlurmOption("name", "", help="only jobs with these names"),
    SlurmOption("nodelist", "N", help="only these nodes"),
    SlurmOption("noheader", "n", _FLAG, help="no lines of titles"),
    SlurmOption("parsable", "p", _FLAG, help="columns end with |"),
    SlurmOption("parsable2", "P", _FLAG, help="| between columns"),
    SlurmOption("partition", "r", help="only these node pools"),
    SlurmOption("starttime", "S", help="only runs that ended after this time; by default since midnight, without -j"),
    SlurmOption("state", "s", help="only these states, such as CD,F"),
    SlurmOption("user", "u", help="only jobs of these users"),
)


class SacctCommand(SlurmCommand):
    """The command `sacct`."""

    slurm_options = SACCT_OPTIONS


@click.command(cls=SacctCommand)
def sacct(session: Session, occurrences: tuple[Occurrence, ...]) -> None:
    """List batch jobs that run or have ended, with Slurm's columns.

    It is `wharf job allocs` for all batch jobs. Servers delete an ended batch job some time after its end, as
    `server.batch_job_gc_threshold` sets. There is one line for each run, and none for its steps.

    wharf sacct -j 4711 --format=JobID,State,ExitCode,Elapsed
    """
    from wharf.cli.slurm.documents import build_sacct_document
    from wharf.cli.slurm.formats import (
        NOT_STORED,
        SACCT_BRIEF_FORMAT,
        SACCT_FIELDS,
        SACCT_FORMAT,
        FormatError,
        parse_named_format,
        render_columns,
        render_parsable,
    )
    from wharf.cli.slurm.selection import MAX_JOBS, list_batch_jobs, parse_time_ns, read_rows, resolve_names
    from wharf.cli.slurm.squeue import build_filter, print_document

    values = get_last_values(occurrences)
    if "helpformat" in values:
        click.echo("\n".join(field.title for field in SACCT_FIELDS.values()))
        return
    filter = build_filter(values)
    try:
        default = SACCT_BRIEF_FORMAT if "brief" in values else SACCT_FORMAT
        columns = parse_named_format(values.get("format", default), SACCT_FIELDS)
    except FormatError as error:
        raise CliError(f"--format: {error}") from error
    if unknown := [column.field.title for column in columns if column.field.title in NOT_STORED]:
        print_notice(f"note: {', '.join(unknown)}: not stored; `wharf alloc stats ALLOC` shows what runs")
    now_ns = session.now_ns()
    start = values.get("starttime", "" if filter.names else "midnight")
    start_ns = parse_time_ns(start, now_ns) if start else 0
    end_ns = parse_time_ns(values["endtime"], now_ns) if "endtime" in values else now_ns
    stubs = list_batch_jobs(session, filter, only_live=False)
    note = f"the newest {MAX_JOBS} of {len(stubs)} jobs; select others with -j, --name or -u"
    warnings = [note] if len(stubs) > MAX_JOBS else []
    for text in warnings:
        print_notice(f"note: {text}")
    filter = resolve_names(filter, stubs)
    rows = [
        row
        for row in read_rows(session, stubs)
        if filter.matches(row) and (row.end_ns or now_ns) >= start_ns and (row.start_ns or row.submit_ns) <= end_ns
    ]
    rows.sort(key=lambda row: row.submit_ns)
    if "json" in values:
        print_document(build_sacct_document, "sacct", rows, now_ns, warnings)
        return
    has_header = "noheader" not in values
    if "parsable" in values or "parsable2" in values:
        lines = render_parsable(
            columns,
            rows,
            now_ns,
            has_header=has_header,
            delimiter=values.get("delimiter", "|"),
            ends_with_delimiter="parsable2" not in values,
        )
    else:
        lines = render_columns(columns, rows, now_ns, has_header=has_header, rule=True)
    for line in lines:
        click.echo(line)
