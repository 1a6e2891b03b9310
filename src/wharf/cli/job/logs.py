"""`wharf job logs`: prints the logs of all tasks of a job, each line with its allocation and task."""

import asyncio
import re
import sys
import zlib
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.alloc.logs import (
    ESTIMATED_LINE_BYTES,
    READ_GROWTH_FACTOR,
    RETAINED_LOG_TEXT,
    check_pattern,
    create_log_outage,
    get_read_position,
    has_last_lines,
    is_finished,
    take_last_lines,
)
from wharf.cli.common.errors import CliError
from wharf.cli.common.options import raw_option
from wharf.cli.common.server_commands import STORE_OUTAGE_LIMIT_S, QuietServerCommand, Session
from wharf.cli.common.task_output import TaskOutput, clean_lines
from wharf.cli.common.terminal import render_for_terminal, style
from wharf.cli.common.waiting_notices import NodeNotices
from wharf.cli.completion import complete_jobs
from wharf.world.backoff import Backoff
from wharf.world.lines import LineSplitter
from wharf.world.tasks import cancel_tasks

if TYPE_CHECKING:
    from wharf.contract.client import AsyncClient
    from wharf.contract.client.streams import LogChunk
    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.wire.jobs.messages import JobStub

STREAMS: Final = ("stdout", "stderr")
PREFIX_COLOURS: Final = ("cyan", "green", "yellow", "blue", "magenta", "bright_cyan", "bright_green", "bright_blue")
MAX_LINE_BYTES: Final = 1 << 20
"""A longer line is printed in parts: a task may never end its line."""
POLL_WAIT_S: Final = 5.0
"""How long one blocking query for new allocations waits while logs are followed."""
MIN_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 5.0
"""The longest pause before a log is looked for again that does not exist yet. A user waits for the lines."""


@click.command(cls=QuietServerCommand)
@click.argument("job_id", metavar="JOB", shell_complete=complete_jobs)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines, also of allocations that start later.")
@click.option("--group", default="", help="Only this group.")
@click.option("--task", default="", help="Only this task.")
@click.option("--stderr", is_flag=True, help="Only standard error.")
@click.option("--stdout", is_flag=True, help="Only standard output.")
@click.option("--grep", "pattern", default="", help="Only lines that match this regular expression.")
@click.option("--since", default="", help="Only logs that were written to within this duration, such as `10m`.")
@click.option("-n", "lines", type=click.IntRange(0), default=None, help="Begin with the last N lines of each log.")
@click.option("--all-allocs", is_flag=True, help="Also allocations that were replaced.")
@raw_option
def logs(
    session: Session,
    job_id: str,
    follow: bool,
    group: str,
    task: str,
    stderr: bool,
    stdout: bool,
    pattern: str,
    since: str,
    lines: int | None,
    all_allocs: bool,
    raw: bool,
) -> None:
    """Print the logs of all tasks of a job.

    Each line begins with its allocation and task. `!` marks lines of standard error.

    wharf job logs web -f --grep error
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    if (found.periodic or found.parameterized_job) and not found.parent_id and not follow:
        raise CliError(
            f"{found.id} runs no tasks itself; print the logs of a child, such as `wharf job logs {found.id}/…`; "
            f"`wharf job status {found.id}` lists the children"
        )
    _require_group_and_task(session, found, group, task)
    log_filter = LogFilter(
        group=group,
        task=task,
        streams=tuple(name for name, is_chosen in zip(STREAMS, (stdout, stderr), strict=True) if is_chosen) or STREAMS,
        pattern=re.compile(check_pattern(pattern)) if pattern else None,
        since_ns=session.now_ns() - _parse_since_ns(since) if since else 0,
        lines=lines,
        is_all_allocations=all_allocs,
        is_raw=raw,
    )
    asyncio.run(_print_logs(session, found.id, found.namespace, log_filter, is_following=follow))


def _require_group_and_task(session: Session, job: "JobStub", group: str, task: str) -> None:
    """Raise CliError if neither the job nor one of its allocations has a group or task of this name."""
    if not (group or task):
        return
    specification = session.client.jobs.read(job.id, namespace=job.namespace).value
    tasks_by_group = {each.name: {one.name for one in each.tasks or ()} for each in specification.groups}
    # Groups and tasks of earlier versions may still have logs.
    for allocation in session.client.jobs.allocations(job.id, namespace=job.namespace).value:
        tasks_by_group.setdefault(allocation.task_group, set()).update(allocation.task_states or ())
    if group and group not in tasks_by_group:
        raise CliError(f"job {job.id} has no group {group}; its groups are {', '.join(sorted(tasks_by_group))}")
    owner = f"group {group} of job {job.id}" if group else f"job {job.id}"
    tasks = {name for each, names in tasks_by_group.items() if group in ("", each) for name in names}
    if task and task not in tasks:
        raise CliError(f"{owner} has no task {task}; its tasks are {', '.join(sorted(tasks))}")


def _parse_since_ns(text: str) -> int:
    """Return the duration that `--since` names, in nanoseconds. Raises CliError."""
    from wharf.contract.model.times import DurationError, parse_duration_ns

    try:
        return parse_duration_ns(text)
    except DurationError as error:
        raise CliError(f"--since {text}: {error}") from None


class LogFilter:
    """The selection of logs and lines to print.

    `since_ns` is a Unix time before which a log was last written; 0 is no limit. `lines` is the number of last lines of
    each log; None is the whole log.
    """

    def __init__(
        self,
        *,
        group: str,
        task: str,
        streams: tuple[str, ...],
        pattern: "re.Pattern[str] | None",
        since_ns: int,
        lines: int | None,
        is_all_allocations: bool,
        is_raw: bool,
    ) -> None:
        self.group = group
        self.task = task
        self.streams = streams
        self.pattern = pattern
        self.since_ns = since_ns
        self.lines = lines
        self.is_all_allocations = is_all_allocations
        self.is_raw = is_raw

    def select_tasks(self, allocations: "list[AllocationStub]") -> "list[tuple[AllocationStub, str]]":
        """Return the selected tasks as (allocation, task name), sorted by allocation name."""
        chosen = [allocation for allocation in allocations if not self.group or allocation.task_group == self.group]
        if not self.is_all_allocations:
            # Names of system jobs occur once per node.
            newest_by_name = {
                (
                    allocation.name,
                    allocation.node_id if allocation.job_type in ("system", "sysbatch") else "",
                ): allocation
                for allocation in sorted(chosen, key=lambda allocation: allocation.create_index)
            }
            chosen = list(newest_by_name.values())
        return [
            (allocation, task)
            for allocation in sorted(chosen, key=lambda allocation: (allocation.name, allocation.create_index))
            for task in sorted(allocation.task_states or {})
            if not self.task or task == self.task
        ]


async def _print_logs(
    session: Session, job_id: str, namespace: str, log_filter: LogFilter, *, is_following: bool
) -> None:
    """Print the logs of a job: one log after the other, or, with `is_following`, all together until the job is dead.

    Raises CliError if the servers do not reply for too long.
    """
    from wharf.cli.common.outages import Outage
    from wharf.contract.client import RetryPolicy, connect_async

    outage = Outage(session, f"`wharf job status {job_id}` shows the state of the job")
    # The first call fails early, because a user waits for it; `outage` repeats the later ones.
    retry_policy = RetryPolicy(
        max_attempts=3, max_pause_s=1.0, retries_first_open=False, max_store_outage_s=STORE_OUTAGE_LIMIT_S
    )
    async with connect_async(session.settings, world=session.world, retry_policy=retry_policy) as client:
        notices = NodeNotices()
        client.set_stream_observer(notices.watch_stream)
        readers: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        reported_ids: set[str] = set()
        index = 0
        try:
            while True:
                query = partial(
                    client.jobs.allocations,
                    job_id,
                    namespace=namespace,
                    index=index,
                    wait_s=POLL_WAIT_S if index else None,
                )
                response = await (outage.call_async(query) if index else query())
                if is_following and not index and not response.value:
                    click.echo(f"no logs yet: {await _explain_job(client, job_id, namespace)}", err=True)
                index = response.index
                for allocation, task in log_filter.select_tasks(response.value):
                    notices.allocations[allocation.id] = allocation.name, allocation.node_name
                    if allocation.id not in reported_ids and allocation.client_status.is_terminal:
                        reported_ids.add(allocation.id)
                        await _report_if_files_are_gone(client, allocation)
                    for stream in log_filter.streams:
                        if (allocation.id, task, stream) not in readers:
                            source = LogSource(session, client, allocation, task, stream, log_filter)
                            reader = session.world.start_task(
                                source.print_lines(is_following=is_following), name=f"logs of {allocation.name}"
                            )
                            readers[allocation.id, task, stream] = reader
                            if not is_following:
                                await reader  # One log after the other, so that their lines are not mixed.
                for reader in readers.values():
                    if reader.done():
                        reader.result()
                if not is_following:
                    return
                if all(reader.done() for reader in readers.values()):
                    job = (await outage.call_async(partial(client.jobs.read, job_id, namespace=namespace))).value
                    if job.status == "dead":
                        return
        finally:
            await cancel_tasks(*readers.values())


async def _explain_job(client: "AsyncClient", job_id: str, namespace: str) -> str:
    """Return the sentence of `wharf job explain`; a plain one if the server does not explain."""
    from wharf.contract.client import Unreachable
    from wharf.contract.model.refusal import Refusal

    try:
        return (await client.jobs.explain(job_id, namespace=namespace)).value.text
    except (Refusal, Unreachable):
        return f"job {job_id} has no allocations"


async def _report_if_files_are_gone(client: "AsyncClient", allocation: "AllocationStub") -> None:
    """Print a note if the node no longer has the log files: servers then return only the last part of each log."""
    from wharf.contract.client.errors import NotFound

    try:
        await client.files.stat(allocation.id, "alloc/logs", namespace=allocation.namespace)
    except NotFound as error:
        click.echo(f"wharf: {RETAINED_LOG_TEXT.format(name=allocation.name, reason=error.text)}", err=True)


class LogSource:
    """One log (stdout or stderr of a task in an allocation), printed line by line with a coloured prefix."""

    def __init__(
        self,
        session: Session,
        client: "AsyncClient",
        allocation: "AllocationStub",
        task: str,
        stream: str,
        filter: LogFilter,
    ) -> None:
        self._client = client
        self._allocation = allocation
        self._task = task
        self._stream = stream
        self._filter = filter
        self._output = TaskOutput(is_raw=filter.is_raw)
        self._outage = create_log_outage(session, allocation)
        self._backoff = Backoff(session.world.random, min_s=MIN_PAUSE_S, max_s=MAX_PAUSE_S)
        """The pauses between attempts to open a log that does not exist yet."""
        self._position: LogChunk | None = None
        """The last chunk that was printed: the log continues after it."""
        self._lines = LineSplitter(sys.maxsize)
        """Without a limit, because `_print_chunks` prints a long line in parts."""
        label = (
            f"{session.shorten_id(allocation.id)} {allocation.task_group}[{allocation.name.rpartition('[')[2]} {task}"
        )
        colour = PREFIX_COLOURS[zlib.crc32(f"{allocation.id}{task}".encode()) % len(PREFIX_COLOURS)]
        self._prefix = style(label, fg=colour) + (style("! ", fg="red") if stream == "stderr" else "  ")

    async def print_lines(self, *, is_following: bool) -> None:
        """Print the log; if following, until the allocation ends, also over interruptions of the connection."""
        from wharf.contract.client import Unreachable
        from wharf.contract.client.errors import NotFound, ServerUnavailable

        was_finished = False
        while True:
            try:
                if await self._was_written_since():
                    await self._print_chunks(is_following=is_following)
                return
            except NotFound:
                # No log exists: nothing was printed, the task has not started, the files are gone or the node is away.
                if not is_following or was_finished:
                    return
                was_finished = await is_finished(self._client, self._allocation)
                await asyncio.sleep(self._backoff.next_delay_s())
            except ServerUnavailable as error:
                node, name = self._allocation.node_name, self._allocation.name
                raise CliError(f"node {node} did not send the log of {name}: {error.text}") from error
            except Unreachable as error:
                if not is_following:
                    raise
                await asyncio.sleep(self._outage.next_pause_s(error))

    async def _was_written_since(self) -> bool:
        """Return whether one of the log's files was written to after the time of `--since`."""
        if not self._filter.since_ns:
            return True
        from wharf.cli.common.times import parse_time, to_nanoseconds

        entries = await self._client.files.list(self._allocation.id, "alloc/logs", namespace=self._allocation.namespace)
        times = [
            to_nanoseconds(parse_time(entry.mod_time))
            for entry in entries
            if entry.name.startswith(f"{self._task}.{self._stream}.")
        ]
        return not times or max(times) >= self._filter.since_ns

    async def _print_chunks(self, *, is_following: bool) -> None:
        """Read the log in chunks and print its complete lines; at the end also an incomplete one."""
        if self._position is not None:
            file, origin, offset = self._position.file, "start", self._position.offset
        else:
            lines = self._filter.lines
            last_bytes = None if lines is None else await self._measure_last_lines(lines)
            file, (origin, offset) = "", get_read_position(last_bytes)
        async for chunk in self._client.files.logs(
            self._allocation.id,
            self._task,
            type=self._stream,
            follow=is_following,
            origin=origin,
            offset=offset,
            file=file,
            namespace=self._allocation.namespace,
        ):
            self._backoff.reset()
            self._outage.end()
            self._position = chunk
            complete_lines = self._lines.feed(chunk)
            if self._lines.rest_bytes > MAX_LINE_BYTES:
                complete_lines.append(self._lines.take_rest())
            self._print(complete_lines)
        if rest := self._lines.take_rest():
            self._print([rest])

    async def _measure_last_lines(self, lines: int) -> int:
        """Return the size of the last lines in bytes: read more of the log's end until it has enough lines."""
        from wharf.contract.client.errors import NotFound

        read_bytes = ESTIMATED_LINE_BYTES * max(lines, 1)
        while True:
            chunks = self._client.files.logs(
                self._allocation.id,
                self._task,
                type=self._stream,
                origin="end",
                offset=read_bytes,
                namespace=self._allocation.namespace,
            )
            try:
                text = b"".join([chunk async for chunk in chunks])
            except NotFound:
                return 0
            if has_last_lines(text, lines, read_bytes):
                return len(take_last_lines(text, lines))
            read_bytes *= READ_GROWTH_FACTOR

    def _print(self, lines: list[bytes]) -> None:
        """Print the lines that match the filter, each with its prefix."""
        pattern = self._filter.pattern
        for line in lines:
            if pattern is not None and not pattern.search(line.decode(errors="replace").rstrip("\r")):
                continue
            if self._output.is_filtered:
                for text in clean_lines(line):
                    self._output.write_clean(f"{render_for_terminal(self._prefix)}{text}\n")
            else:
                is_terminal = sys.stdout.isatty()
                prefix = render_for_terminal(self._prefix) if is_terminal else click.unstyle(self._prefix)
                self._output.write(prefix.encode() + line + b"\n")
        sys.stdout.flush()
