"""The columns of `squeue` and `sacct`, and their formats: `%.18i` and `JobID%20`."""

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from wharf.cli.slurm.rows import COMPACT_STATES, LIVE_STATES, Row
from wharf.contract.model.times import SECOND

MAX_WIDTH: Final = 1_000
"""Limit of the width of a column; protects memory."""
_SHORT_FIELD: Final = re.compile(r"%(\.?)(\d{0,4})([A-Za-z])([^%]*)")
UNKNOWN_TIME: Final = "Unknown"
NO_LIMIT: Final = "UNLIMITED"


class Field(NamedTuple):
    """A column: its title, its usual width and how a line's value is found from the line and the time now."""

    title: str
    width: int
    read: Callable[[Row, int], str]
    is_left: bool = False


class Column(NamedTuple):
    """A column with the width of this output. `cuts`: longer values are cut, because the user gave the width."""

    field: Field
    width: int
    is_left: bool
    cuts: bool
    tail: str = " "


class FormatError(ValueError):
    """The error for a format with an unknown column. Its message lists the columns."""


def format_elapsed(duration_ns: int) -> str:
    """Return a duration as Slurm writes it in `squeue`: `0:42`, `1:05:09` or `2-03:00:00`."""
    minutes, seconds = divmod(duration_ns // SECOND, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def format_whole_elapsed(duration_ns: int) -> str:
    """Return a duration as Slurm writes it in `sacct`: `00:00:42` or `2-03:00:00`."""
    seconds = duration_ns // SECOND
    days, seconds = divmod(seconds, 86_400)
    text = f"{seconds // 3_600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{days}-{text}" if days else text


def format_time(time_ns: int) -> str:
    """Return a time in the time zone of the user: `2026-11-29T18:30:00`."""
    if not time_ns:
        return UNKNOWN_TIME
    return datetime.datetime.fromtimestamp(time_ns // SECOND).strftime("%Y-%m-%dT%H:%M:%S")


def _format_limit(row: Row, format_duration: Callable[[int], str]) -> str:
    return format_duration(row.time_limit_ns) if row.time_limit_ns else NO_LIMIT


def _format_left(row: Row, now_ns: int) -> str:
    if not row.time_limit_ns:
        return NO_LIMIT
    return format_elapsed(max(row.time_limit_ns - row.get_elapsed_ns(now_ns), 0))


def _format_place(row: Row, _now_ns: int) -> str:
    return (
        row.node or f"({row.reason or 'None'})"
        if row.state in LIVE_STATES
        else f"({row.reason})"
        if row.reason
        else row.node
    )


SQUEUE_FIELDS: Final[Mapping[str, Field]] = {
    "a": Field("ACCOUNT", 8, lambda row, _: row.account or "(null)"),
    "A": Field("JOBID", 18, lambda row, _: row.job_id),
    "C": Field("CPUS", 4, lambda row, _: str(row.cores)),
    "D": Field("NODES", 6, lambda _row, _now: "1"),
    "e": Field("END_TIME", 20, lambda row, _: format_time(row.end_ns) if row.end_ns else "N/A"),
    "F": Field("ARRAY_JOB_ID", 12, lambda row, _: row.job_id),
    "i": Field("JOBID", 18, lambda row, _: row.id),
    "j": Field("NAME", 8, lambda row, _: row.name),
    "k": Field("COMMENT", 10, lambda row, _: row.comment or "(null)"),
    "K": Field("ARRAY_TASK_ID", 13, lambda row, _: row.label.strip("[]") or "N/A"),
    "l": Field("TIME_LIMIT", 10, lambda row, _: _format_limit(row, format_elapsed)),
    "L": Field("TIME_LEFT", 10, _format_left),
    "m": Field("MIN_MEMORY", 10, lambda row, _: f"{row.memory_mb}M"),
    "M": Field("TIME", 10, lambda row, now: format_elapsed(row.get_elapsed_ns(now))),
    "N": Field("NODELIST", 20, lambda row, _: row.node, is_left=True),
    "p": Field("PRIORITY", 8, lambda row, _: str(row.priority)),
    "P": Field("PARTITION", 9, lambda row, _: row.partition),
    "q": Field("QOS", 8, lambda row, _: row.qos or "(null)"),
    "Q": Field("PRIORITY", 8, lambda row, _: str(row.priority)),
    "r": Field("REASON", 20, lambda row, _: row.reason or "None", is_left=True),
    "R": Field("NODELIST(REASON)", 20, _format_place, is_left=True),
    "S": Field("START_TIME", 20, lambda row, _: format_time(row.start_ns) if row.start_ns else "N/A"),
    "t": Field("ST", 2, lambda row, _: COMPACT_STATES[row.state]),
    "T": Field("STATE", 8, lambda row, _: row.state),
    "u": Field("USER", 8, lambda row, _: row.user or "-"),
    "V": Field("SUBMIT_TIME", 20, lambda row, _: format_time(row.submit_ns)),
    "Z": Field("WORK_DIR", 20, lambda row, _: row.work_folder, is_left=True),
}
SQUEUE_FORMAT: Final = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
SQUEUE_LONG_FORMAT: Final = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"

NOT_STORED: Final = (
    "AveCPU", "AveRSS", "AveVMSize", "ConsumedEnergy", "MaxRSS", "MaxVMSize", "SystemCPU", "TotalCPU", "UserCPU",
)  # fmt: skip
"""Columns of measurements, which servers do not store after the end of a run. They are empty."""


def _format_tres(row: Row, _now_ns: int) -> str:
    return f"cpu={row.cores},mem={row.memory_mb}M,node=1"


_ELAPSED: Final = Field("Elapsed", 10, lambda row, now: format_whole_elapsed(row.get_elapsed_ns(now)))
SACCT_FIELDS: Final[Mapping[str, Field]] = {
    field.title.lower(): field
    for field in (
        Field("JobID", 12, lambda row, _: row.id, is_left=True),
        Field("JobIDRaw", 12, lambda row, _: row.id, is_left=True),
        Field("JobName", 10, lambda row, _: row.name),
        Field("Partition", 10, lambda row, _: row.partition),
        Field("Account", 10, lambda row, _: row.account),
        Field("AllocCPUS", 10, lambda row, _: str(row.cores if row.start_ns else 0)),
        Field("AllocNodes", 10, lambda row, _: "1" if row.node else "0"),
        Field("NCPUS", 10, lambda row, _: str(row.cores)),
        Field("NNodes", 8, lambda _row, _now: "1"),
        Field("ReqCPUS", 8, lambda row, _: str(row.cores)),
        Field("ReqMem", 10, lambda row, _: f"{row.memory_mb}M"),
        Field("State", 10, lambda row, _: row.state),
        Field("ExitCode", 8, lambda row, _: row.exit_code),
        Field("DerivedExitCode", 15, lambda row, _: row.exit_code),
        _ELAPSED,
        Field("ElapsedRaw", 10, lambda row, now: str(row.get_elapsed_ns(now) // SECOND)),
        Field("CPUTime", 10, lambda row, now: format_whole_elapsed(row.get_elapsed_ns(now) * row.cores)),
        Field("CPUTimeRAW", 10, lambda row, now: str(row.get_elapsed_ns(now) // SECOND * row.cores)),
        Field("Timelimit", 10, lambda row, _: _format_limit(row, format_whole_elapsed)),
        Field("Submit", 19, lambda row, _: format_time(row.submit_ns)),
        Field("Start", 19, lambda row, _: format_time(row.start_ns)),
        Field("End", 19, lambda row, _: format_time(row.end_ns)),
        Field("NodeList", 15, lambda row, _: row.node or "None assigned"),
        Field("User", 9, lambda row, _: row.user),
        Field("QOS", 10, lambda row, _: row.qos),
        Field("Priority", 10, lambda row, _: str(row.priority)),
        Field("Comment", 14, lambda row, _: row.comment),
        Field("WorkDir", 20, lambda row, _: row.work_folder),
        Field("Reason", 20, lambda row, _: row.reason or "None"),
        Field("AllocTRES", 20, lambda row, now: _format_tres(row, now) if row.start_ns else ""),
        Field("ReqTRES", 20, _format_tres),
        *(Field(title, 10, lambda _row, _now: "") for title in NOT_STORED),
    )
}
SACCT_FORMAT: Final = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
SACCT_BRIEF_FORMAT: Final = "JobID,State,ExitCode"


def parse_squeue_format(text: str, *, cuts: bool) -> list[Column]:
    """Return the columns of a format such as `%.18i %j`. Raises `FormatError`."""
    columns: list[Column] = []
    position = 0
    for found in _SHORT_FIELD.finditer(text):
        if found.start() != position:
            break
        position = found.end()
        dot, width, letter, tail = found.groups()
        field = SQUEUE_FIELDS.get(letter)
        if field is None:
            raise FormatError(f"unknown column %{letter}: use {', '.join(f'%{name}' for name in SQUEUE_FIELDS)}")
        chosen = min(int(width), MAX_WIDTH) if width else 0
        columns.append(Column(field, chosen, not dot, cuts and bool(width), tail))
    if position != len(text) or not columns:
        raise FormatError('expected a format such as "%.18i %.9P %j %T"')
    return columns


def parse_named_format(text: str, fields: Mapping[str, Field]) -> list[Column]:
    """Return the columns of a format such as `JobID,State%20`. Raises `FormatError`."""
    columns: list[Column] = []
    for part in text.split(","):
        name, percent, width = part.strip().partition("%")
        field = fields.get(name.lower())
        digits = width.removeprefix("-")
        if field is None or (percent and not (digits.isdecimal() and len(digits) <= 4)):
            known = ", ".join(each.title for each in fields.values())
            raise FormatError(f"unknown column {part.strip()!r}: use {known}; NAME%20 sets the width")
        if percent:
            columns.append(Column(field, min(int(digits), MAX_WIDTH), width.startswith("-"), True))
        else:
            columns.append(Column(field, field.width, field.is_left, False))
    return columns


def render_columns(
    columns: Sequence[Column], rows: Sequence[Row], now_ns: int, *, has_header: bool, rule: bool = False
) -> list[str]:
    """Return the lines of a table. `rule`: a line of dashes follows the titles."""
    cells = [[column.field.read(row, now_ns) for column in columns] for row in rows]
    titles = [column.field.title for column in columns]
    widths = [
        column.width
        if column.cuts or not column.width
        else max([column.width, len(titles[at]), *(len(line[at]) for line in cells)])
        for at, column in enumerate(columns)
    ]
    lines = [_join(columns, widths, titles)] if has_header else []
    if has_header and rule:
        lines.append(" ".join("-" * width for width in widths))
    return lines + [_join(columns, widths, line) for line in cells]


def _join(columns: Sequence[Column], widths: Sequence[int], texts: Sequence[str]) -> str:
    pieces: list[str] = []
    for column, width, text in zip(columns, widths, texts, strict=True):
        shown = text[:width] if column.cuts else text
        pieces += [shown.ljust(width) if column.is_left else shown.rjust(width), column.tail]
    return "".join(pieces).rstrip()


def render_parsable(
    columns: Sequence[Column],
    rows: Sequence[Row],
    now_ns: int,
    *,
    has_header: bool,
    delimiter: str,
    ends_with_delimiter: bool,
) -> list[str]:
    """Return the lines of a table for programs: values between delimiters, never cut."""
    lines = [[column.field.title for column in columns]] if has_header else []
    lines += [[column.field.read(row, now_ns) for column in columns] for row in rows]
    return [delimiter.join(line) + (delimiter if ends_with_delimiter else "") for line in lines]
