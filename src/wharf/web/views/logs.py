"""The logs of a job and of an allocation: lines in blocks, who printed them, and what a search found."""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.allocations.names import parse_index
from wharf.web.log_follower import make_source_key
from wharf.web.log_reader import LogLine, LogPart, SearchResult, TaskLog
from wharf.web.rendering import build_link, count_noun, format_count
from wharf.web.views.states import ListedAllocation
from wharf.web.views.styled_text import MAX_LINE_CHARS, StyledText, style_line

STREAMS: Final = ("stdout", "stderr")
MAX_SOURCES: Final = 40
"""Logs that a page reads. Each is a request to a node."""
MAX_LINES: Final = 1_000
"""Lines that a page shows, of all its logs together."""
BLOCK_LINES: Final = 500
"""Lines of a block. Browsers lay out only the blocks that are visible."""
MAX_NAMED_LOGS: Final = 3
"""Logs that a sentence names that could not be searched for the same reason."""
NOT_READ_TEXT: Final = "not read"
SOURCE_COLORS: Final = ("cyan", "green", "yellow", "blue", "magenta")


class LineView(msgspec.Struct, frozen=True):
    """A line of a log."""

    id: str
    url: str
    name: str
    color: str
    is_error: bool
    pieces: tuple[StyledText, ...]
    hidden_bytes: int


class SourceView(msgspec.Struct, frozen=True):
    """A log, with its own page and download."""

    name: str
    stream: str
    color: str
    url: str
    download_url: str
    note: str


class LogSearchView(msgspec.Struct, frozen=True):
    """What a search found."""

    sentence: str
    is_complete: bool
    problems: tuple[str, ...]


class LogView(msgspec.Struct, frozen=True):
    """A page of logs."""

    path: tuple[tuple[str, str], ...]
    """The pages above this one: text and address."""
    title: str
    form_url: str
    namespace: str
    query: str
    stream: str
    task: str
    tasks: tuple[str, ...]
    has_replaced: bool
    """Whether the page also shows allocations that were replaced."""
    can_show_replaced: bool
    blocks: tuple[tuple[LineView, ...], ...]
    sources: tuple[SourceView, ...]
    notes: tuple[str, ...]
    search: LogSearchView | None
    follow_url: str
    after: str
    problems: tuple[str, ...] = ()
    """Why logs could not be read, each reason once."""
    earlier_url: str = ""
    later_url: str = ""
    end_url: str = ""


def select_sources(
    allocations: Iterable[ListedAllocation], query: Mapping[str, str]
) -> tuple[tuple[TaskLog, ...], int]:
    """Return the logs that the address selects, and how many allocations are left out because there are too many.

    Without `all`, an allocation that was replaced is left out. Running allocations come first in the choice, then those that
    failed, then newer ones. The result is ordered by name.
    """
    ordered = sorted(allocations, key=lambda each: (each.client_status.is_terminal, -each.create_index))
    if not query.get("all"):
        newest: dict[tuple[str, str], ListedAllocation] = {}
        for each in ordered:  # Names of system jobs occur once for each node.
            newest.setdefault((each.name, each.node_id if _is_system(each) else ""), each)
        ordered = list(newest.values())
    ordered.sort(key=_get_choice_rank)
    streams = tuple(name for name in STREAMS if query.get("stream") in (None, "", name))
    chosen: list[ListedAllocation] = []
    count = 0
    for each in ordered:
        tasks = [task for task in (each.task_states or {}) if query.get("task") in (None, "", task)]
        if count + len(tasks) * len(streams) > MAX_SOURCES and chosen:
            break
        count += len(tasks) * len(streams)
        chosen.append(each)
    sources = [
        TaskLog(
            each.id,
            task,
            stream,
            f"{shorten_name(each, with_id=bool(query.get('all')))} {task}",
            is_running=not each.client_status.is_terminal and each.desired_status is DesiredStatus.RUN,
        )
        for each in sorted(chosen, key=lambda each: (each.task_group, parse_index(each.name), each.create_index))
        for task in each.task_states or {}
        for stream in streams
        if query.get("task") in (None, "", task)
    ]
    return color_sources(sources[:MAX_SOURCES]), len(ordered) - len(chosen)


def _get_choice_rank(allocation: ListedAllocation) -> tuple[bool, bool]:
    has_ended = allocation.client_status.is_terminal
    return has_ended, has_ended and allocation.client_status is not ClientStatus.FAILED


def _is_system(allocation: ListedAllocation) -> bool:
    job_type = getattr(allocation, "job_type", "")
    return job_type in ("system", "sysbatch")


def shorten_name(allocation: ListedAllocation, *, with_id: bool) -> str:
    """Return the name of an allocation without its job, such as `web[0]`, or with its short ID, if names are not unique."""
    name = f"{allocation.task_group}[{allocation.name.rpartition('[')[2]}"
    return f"{name} {allocation.id[:8]}" if with_id or _is_system(allocation) else name


def color_sources(sources: Sequence[TaskLog]) -> tuple[TaskLog, ...]:
    """Return the logs with a color for each allocation and task."""
    names = {name: position for position, name in enumerate(dict.fromkeys(each.name for each in sources))}
    return tuple(
        msgspec.structs.replace(each, color=SOURCE_COLORS[names[each.name] % len(SOURCE_COLORS)]) for each in sources
    )


def list_tasks(allocations: Iterable[ListedAllocation]) -> tuple[str, ...]:
    return tuple(sorted({task for each in allocations for task in each.task_states or {}}))


def build_line_view(line: LogLine) -> LineView:
    """Return a line with its link, which leads to the page of its log, with the lines around it."""
    source, position = line.source, line.position
    identifier = f"l{make_source_key(source)}-{'' if position.number is None else position.number}-{position.offset}"
    url = build_log_link(source, file=position.number, at=position.offset)
    return LineView(
        id=identifier,
        url=f"{url}#{identifier}",
        name=source.name,
        color=source.color,
        is_error=source.is_error,
        pieces=style_line(line.text),
        hidden_bytes=max(0, len(line.text) - MAX_LINE_CHARS),
    )


def build_log_link(source: TaskLog, **position: str | int | None) -> str:
    """Return the address of the page of one log, at a position."""
    return build_link("allocations", source.alloc_id, "logs", task=source.task, stream=source.stream, **position)


def build_blocks(lines: Sequence[LogLine]) -> tuple[tuple[LineView, ...], ...]:
    views = [build_line_view(line) for line in lines]
    return tuple(tuple(views[start : start + BLOCK_LINES]) for start in range(0, len(views), BLOCK_LINES))


def build_source_view(source: TaskLog, part: LogPart | None, problems: Container[str] = ()) -> SourceView:
    """Return a log with its links. One that is known to be empty has no download.

    `problems` are the reasons that the page says above the logs, and does not repeat beside each.
    """
    is_empty = part is not None and part.end is None
    return SourceView(
        name=source.name,
        stream=source.stream,
        color=source.color,
        url=build_log_link(source),
        download_url=""
        if is_empty
        else build_link("allocations", source.alloc_id, "logs", "raw", task=source.task, stream=source.stream),
        note=""
        if part is None
        else NOT_READ_TEXT
        if part.problem and part.problem in problems
        else describe_part(part),
    )


def share_lines(parts: Sequence[LogPart], max_lines: int) -> tuple[LogPart, ...]:
    """Return the parts with at most `max_lines` last lines together. Short logs keep all, long ones the same number."""
    left, limit = max_lines, max_lines
    ordered = sorted(len(part.lines) for part in parts)
    for position, size in enumerate(ordered):
        limit = left // (len(ordered) - position)
        if size > limit:
            break
        left -= size
    return tuple(
        part
        if len(part.lines) <= limit
        else msgspec.structs.replace(part, lines=part.lines[len(part.lines) - limit :], has_more=True)
        for part in parts
    )


def count_problems(problems: Iterable[str]) -> Mapping[str, int]:
    """Return how many logs could not be read for each reason, in the order of the logs. An empty text is no reason."""
    return Counter(filter(None, problems))


def describe_problems(counts: Mapping[str, int], log_count: int) -> tuple[str, ...]:
    """Return a sentence for each reason why logs of a page with `log_count` logs could not be read."""
    return tuple(
        f"The logs could not be read: {reason}"
        if count == log_count
        else f"{count} of {count_noun(log_count, 'log', 'logs')} could not be read: {reason}"
        for reason, count in counts.items()
    )


def describe_part(part: LogPart) -> str:
    """Return what a reader must know about a log that was read; empty if there is nothing."""
    if part.problem:
        return part.problem
    if part.is_retained:
        return "the node no longer has the files: these are the last lines, which the servers store"
    if part.end is None:
        return "printed nothing"
    return "" if part.lines else "no whole line"


def describe_search(result: SearchResult) -> LogSearchView:
    """Return what a search found, and whether it read everything."""
    lines = "1 line contains" if result.count == 1 else f"{format_count(result.count)} lines contain"
    shown = f"; the last {format_count(len(result.lines))} are shown" if result.count > len(result.lines) else ""
    size = f"{result.searched_bytes / 1_000_000:.1f} MB" if result.searched_bytes >= 100_000 else "all"
    sentence = f"{lines} the text{shown}. Searched: {size}."
    if result.stopped:
        sentence += f" This count is not complete: {result.stopped}."
    return LogSearchView(sentence, not result.stopped, _describe_search_problems(result.problems))


def _describe_search_problems(problems: Mapping[str, str]) -> tuple[str, ...]:
    """Return each reason why logs could not be searched once, with the names of the first logs. `problems` are by log."""
    names: dict[str, list[str]] = {}
    for name, reason in sorted(problems.items()):
        names.setdefault(reason, []).append(name)
    return tuple(f"{_join_first(own)}: {reason}" for reason, own in names.items())


def _join_first(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED_LOGS
    return ", ".join(names[:MAX_NAMED_LOGS]) + (f" and {more} more" if more > 0 else "")
