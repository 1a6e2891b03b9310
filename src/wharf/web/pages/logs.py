"""The pages of logs: of all tasks of a job, and of one allocation."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

from wharf.contract.client.errors import InvalidRequest, RequestRefused
from wharf.contract.client.transport import Unreachable
from wharf.contract.model.allocations.allocation import AllocationStub
from wharf.contract.model.refusal import RefusalCode
from wharf.contract.wire.jobs.endpoints import MAX_NEWEST_ALLOCATIONS
from wharf.web.log_follower import (
    MAX_FOLLOWED_LOGS,
    LogEventStream,
    format_positions,
    make_source_key,
    parse_positions,
)
from wharf.web.log_reader import (
    MAX_FILE_BYTES,
    LinePosition,
    LogLine,
    LogPart,
    TaskLog,
    describe_problem,
    open_log,
    read_end,
    read_window,
    search_logs,
)
from wharf.web.page import DEFAULT_NAMESPACE, Page, PageRequest, PageStream, Redirect, Route
from wharf.web.rendering import build_link, quote_segment, render
from wharf.web.views.logs import (
    MAX_LINES,
    LogSearchView,
    LogView,
    build_blocks,
    build_line_view,
    build_log_link,
    build_source_view,
    count_problems,
    describe_problems,
    describe_search,
    list_tasks,
    select_sources,
    share_lines,
)
from wharf.web.views.states import ListedAllocation

MAX_PAGE_BYTES: Final = 1 << 20
"""How much of the logs a page reads. It shows some 200 kB; the rest are lines of other tasks that turn out to be short."""
MAX_SOURCE_BYTES: Final = 256 << 10
CONTEXT_BYTES: Final = 8 << 10
"""How much before a line is shown with it."""
MAX_QUERY_CHARS: Final = 500
CONCURRENT_READS: Final = 8
"""Logs that a page reads at once."""
MAX_FAILED_ALLOCATIONS: Final = 40
"""How many of the newest failed allocations of a job are read beside the newest ones. The page has room for 20."""
MAX_OFFSET_DIGITS: Final = 15
FILTER_KEYS: Final = ("namespace", "q", "stream", "task", "all")
LAST_BYTE: Final = 1 << 62


async def show_job_logs(request: PageRequest) -> Page | Redirect | PageStream:
    """Show the last lines of all tasks of a job, or the lines that contain a text."""
    job_id, namespace = request.path_values["job"], request.namespace
    allocations = await _list_newest_allocations(request)
    if not allocations:
        await request.client.jobs.read(job_id, namespace=namespace)  # Raises `NotFound` for a job that does not exist.
    path = (
        ("Jobs", build_link("jobs")),
        (job_id, build_link("jobs", job_id, namespace=request.query.get("namespace"))),
    )
    view = await _build_view(request, allocations, path, ("jobs", job_id, "logs"), can_show_replaced=True)
    option = f" -namespace {namespace}" if namespace != DEFAULT_NAMESPACE else ""
    return Page(
        "logs.html",
        f"Logs of {job_id}",
        view,
        section="jobs",
        command=f"wharf job logs{option} {job_id}",
        api_path=f"/v1/job/{quote_segment(job_id)}/allocations?namespace={quote_segment(namespace)}",
    )


async def show_allocation_logs(request: PageRequest) -> Page | Redirect | PageStream:
    """Show the last lines of the tasks of an allocation, lines around a position of one log, or those with a text."""
    alloc_id = request.path_values["allocation"]
    allocation = (await request.client.allocations.read(alloc_id)).value
    path = (
        ("Jobs", build_link("jobs")),
        (allocation.job_id, build_link("jobs", allocation.job_id, namespace=_leave_out_default(allocation.namespace))),
        (allocation.name, build_link("allocations", alloc_id)),
    )
    view = await _build_view(request, (allocation,), path, ("allocations", alloc_id, "logs"), can_show_replaced=False)
    task = next(iter(allocation.task_states or ()), "TASK")
    return Page(
        "logs.html",
        f"Logs of {allocation.name}",
        view,
        section="jobs",
        command=f"wharf alloc logs {alloc_id[:8]}",
        api_path=f"/v1/client/fs/logs/{alloc_id}?task={quote_segment(task)}&type=stdout&plain=true",
    )


async def _list_newest_allocations(request: PageRequest) -> Sequence[AllocationStub]:
    """Return the newest allocations of the job of the address, and the newest that failed.

    A page reads 40 logs, and a job may have 100,000 allocations, of which an early one failed.
    """
    jobs, job_id = request.client.jobs, request.path_values["job"]
    newest, failed = await asyncio.gather(
        jobs.allocations(job_id, namespace=request.namespace, newest=MAX_NEWEST_ALLOCATIONS),
        jobs.allocations(job_id, namespace=request.namespace, newest=MAX_FAILED_ALLOCATIONS, failed=True),
    )
    return tuple({each.id: each for each in (*newest.value, *failed.value)}.values())


def _leave_out_default(namespace: str) -> str:
    return "" if namespace == DEFAULT_NAMESPACE else namespace


async def _build_view(
    request: PageRequest,
    allocations: Sequence[ListedAllocation],
    path: tuple[tuple[str, str], ...],
    segments: tuple[str, ...],
    *,
    can_show_replaced: bool,
) -> LogView:
    """Return the page of the logs that the address selects."""
    query = request.query
    sources, left_out = select_sources(allocations, query)
    more = " or more" if len(allocations) >= MAX_NEWEST_ALLOCATIONS else ""
    notes = (
        [
            f"{left_out}{more} allocations are not shown: the page reads 40 logs at most, first those of running and of failed allocations"
        ]
        if left_out
        else []
    )
    text = query.get("q", "").strip("\r\n").partition("\n")[0][:MAX_QUERY_CHARS]  # Lines are searched one by one.
    search: LogSearchView | None = None
    parts: tuple[LogPart, ...] = ()
    links: dict[str, str] = {}
    lines: Sequence[LogLine]
    if text:
        found = await search_logs(request.client, sources, text, max_lines=MAX_LINES)
        search, lines = describe_search(found), tuple(found.lines)
    elif (query.get("at") or query.get("before")) and len(sources) == 1:
        part, links = await _read_position(request, sources[0])
        lines, parts = part.lines, (part,)
    else:
        parts = await _read_ends(request, sources)
        lines = [line for part in parts for line in part.lines]
        links = _link_earlier(parts)
    filters = {name: query.get(name, "") for name in FILTER_KEYS}
    is_at_end = not text and not links.get("later_url")
    followed = [each for each in sources if each.is_running][:MAX_FOLLOWED_LOGS]
    positions = {make_source_key(part.source): part.end for part in parts if part.end is not None}
    part_by_key = {make_source_key(part.source): part for part in parts}
    problems = count_problems(part.problem for part in parts)
    return LogView(
        path=path,
        title=path[-1][0],
        form_url=build_link(*segments),
        namespace=query.get("namespace", ""),
        query=text,
        stream=query.get("stream", ""),
        task=query.get("task", ""),
        tasks=list_tasks(allocations),
        has_replaced=bool(query.get("all")),
        can_show_replaced=can_show_replaced,
        blocks=build_blocks(lines),
        sources=tuple(build_source_view(each, part_by_key.get(make_source_key(each)), problems) for each in sources),
        notes=tuple(notes),
        search=search,
        follow_url=build_link(*segments, "follow", **{**filters, "q": ""}) if followed and is_at_end else "",
        after=format_positions(positions),
        problems=describe_problems(problems, len(parts)),
        **links,
    )


async def _read_ends(request: PageRequest, sources: Sequence[TaskLog]) -> tuple[LogPart, ...]:
    """Return the last lines of each log. Long logs share what short ones leave of the lines of the page."""
    max_bytes = min(MAX_SOURCE_BYTES, MAX_PAGE_BYTES // max(1, len(sources)))
    free = asyncio.Semaphore(CONCURRENT_READS)

    async def read(source: TaskLog) -> LogPart:
        async with free:
            return await read_end(request.client, source, max_lines=MAX_LINES, max_bytes=max_bytes)

    return share_lines(await asyncio.gather(*(read(source) for source in sources)), MAX_LINES)


def _link_earlier(parts: Sequence[LogPart]) -> dict[str, str]:
    """Return the link to earlier lines, if the page shows one log."""
    with_lines = [part for part in parts if part.lines]
    if len(with_lines) != 1 or not with_lines[0].has_more:
        return {}
    part = with_lines[0]
    first = part.lines[0].position
    return {"earlier_url": build_log_link(part.source, file=first.number, before=first.offset)}


async def _read_position(request: PageRequest, source: TaskLog) -> tuple[LogPart, dict[str, str]]:
    """Return lines around the position of the address, with links to earlier and later ones."""
    number = _read_number(request, "file")
    if before := request.query.get("before"):
        end = LAST_BYTE if before == "end" else _read_number(request, "before") or 0
        begin = 0 if before == "end" else max(0, end - MAX_SOURCE_BYTES - 1)
        part = await read_window(
            request.client,
            source,
            LinePosition(number, begin),
            end_offset=end,
            max_lines=MAX_LINES,
            max_bytes=MAX_FILE_BYTES,
        )
    else:
        begin = max(0, (_read_number(request, "at") or 0) - CONTEXT_BYTES - 1)
        part = await read_window(
            request.client,
            source,
            LinePosition(number, begin),
            end_offset=None,
            max_lines=MAX_LINES,
            max_bytes=MAX_SOURCE_BYTES,
        )
    links = {"end_url": build_log_link(source)}
    if part.lines:
        first, last = part.lines[0].position, part.lines[-1]
        if first.offset > 0:
            links["earlier_url"] = build_log_link(source, file=first.number, before=first.offset)
        elif first.number:
            links["earlier_url"] = build_log_link(source, file=first.number - 1, before="end")
        next_offset = last.position.offset + len(last.text) + 1
        if part.has_more or request.query.get("before"):
            links["later_url"] = build_log_link(source, file=last.position.number, at=next_offset + CONTEXT_BYTES)
    return part, links


def _read_number(request: PageRequest, name: str) -> int | None:
    """Return a number of the address; `None` if it is not there. Raises `InvalidRequest`."""
    text = request.query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_OFFSET_DIGITS):
        raise InvalidRequest(RefusalCode.INVALID, f"{name} is not a position of a log: {text[:40]}", 400)
    return int(text)


async def follow_job_logs(request: PageRequest) -> Page | Redirect | PageStream:
    """Send the new lines of the tasks of a job."""
    return _follow(request, await _list_newest_allocations(request))


async def follow_allocation_logs(request: PageRequest) -> Page | Redirect | PageStream:
    """Send the new lines of the tasks of an allocation."""
    return _follow(request, ((await request.client.allocations.read(request.path_values["allocation"])).value,))


def _follow(request: PageRequest, allocations: Sequence[ListedAllocation]) -> PageStream:
    sources, _ = select_sources(allocations, request.query)
    followed = [each for each in sources if each.is_running][:MAX_FOLLOWED_LOGS]
    positions = parse_positions(request.query.get("after", ""))
    follower = LogEventStream(request.world, request.client, followed, positions, render_lines)
    return PageStream(follower.stream_events(), "text/event-stream")


def render_lines(lines: Sequence[LogLine]) -> str:
    """Return the HTML of lines."""
    return render("log_lines.html", lines=[build_line_view(line) for line in lines])


async def download_log(request: PageRequest) -> Page | Redirect | PageStream:
    """Send one log unchanged, as a file."""
    alloc_id, task = request.path_values["allocation"], request.query.get("task", "")
    stream = request.query.get("stream", "stdout")
    source = TaskLog(alloc_id, task, stream, task)
    parts = _send_log(request, source)
    # The first part decides about the status: without it, a log that does not exist would be an empty file.
    first = await anext(parts, b"")
    file_name = f"{alloc_id[:8]}.{task}.{stream}.log"
    return PageStream(
        _join_parts(first, parts),
        "text/plain; charset=utf-8",
        headers=((b"content-disposition", f"attachment; filename*=UTF-8''{quote(file_name, safe='')}".encode()),),
    )


async def _send_log(request: PageRequest, source: TaskLog) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a log. A log that breaks off ends with a line that says so."""
    has_begun = False
    try:
        async with open_log(request.client, source, origin="start", offset=0) as chunks:
            async for chunk in chunks:
                has_begun = True
                yield chunk
    except (RequestRefused, Unreachable) as problem:
        if not has_begun:
            raise
        yield f"\n[this download is not complete: {describe_problem(problem)}]\n".encode()


async def _join_parts(first: bytes, parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield the first part, which was read already, and the others."""
    async with aclosing(parts):
        yield first
        async for part in parts:
            yield part


ROUTES: Final = (
    Route("jobs/{job}/logs", show_job_logs),
    Route("jobs/{job}/logs/follow", follow_job_logs),
    Route("allocations/{allocation}/logs", show_allocation_logs),
    Route("allocations/{allocation}/logs/follow", follow_allocation_logs),
    Route("allocations/{allocation}/logs/raw", download_log),
)
