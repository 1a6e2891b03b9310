"""`wharf job logs`: what all tasks of a job print, each line with whose it is."""

import asyncio
import re
import sys
import zlib
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.alloc.files import INTERRUPTED_EXIT_CODE
from wharf.cli.alloc.logs import (
    ESTIMATED_LINE_BYTES,
    LOG_INTERRUPTED_TEXT,
    READ_GROWTH_FACTOR,
    RETAINED_LOG_TEXT,
    RETRY_DELAY_S,
    check_pattern,
    get_read_position,
    has_last_lines,
    is_finished,
    take_last_lines,
)
from wharf.cli.common.errors import CliError
from wharf.cli.common.server_commands import QuietServerCommand, Session
from wharf.cli.completion import complete_jobs

if TYPE_CHECKING:
    from wharf.contract.client import AsyncClient
    from wharf.contract.model.allocations.allocation import AllocationStub

STREAMS: Final = ("stdout", "stderr")
PREFIX_COLOURS: Final = ("cyan", "green", "yellow", "blue", "magenta", "bright_cyan", "bright_green", "bright_blue")
POLL_WAIT_S: Final = 5.0


@click.command(cls=QuietServerCommand)
@click.argument("job_id", metavar="JOB", shell_complete=complete_jobs)
@click.option("-f", "--follow", is_flag=True, help="Go on as more is printed, also by allocations that come later.")
@click.option("--group", default="", help="Of one group only.")
@click.option("--task", default="", help="Of one task only.")
@click.option("--stderr", is_flag=True, help="Only what is printed as errors.")
@click.option("--stdout", is_flag=True, help="Only what is not.")
@click.option("--grep", "pattern", default="", help="Only lines in which this is found, a regular expression.")
@click.option("--since", default="", help="Only files that were written to since, as `10m`.")
@click.option("-n", "lines", type=click.IntRange(0), default=None, help="Begin with the last lines, so many of each.")
@click.option("--all-allocs", is_flag=True, help="Also of allocations that others took the place of.")
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
) -> None:
    """Write out what all tasks of a job print.

    In front of each line stands which allocation and which task it is of; a `!` says that it was printed as an error.

    wharf job logs web -f --grep error
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    if (found.periodic or found.parameterized_job) and not found.parent_id and not follow:
        raise CliError(
            f"{found.id} runs nothing itself: its children print, as `wharf job logs {found.id}/…`; "
            f"`wharf job status {found.id}` lists them"
        )
    wanted = LogFilter(
        group=group,
        task=task,
        streams=tuple(s for s, is_asked in zip(STREAMS, (stdout, stderr), strict=True) if is_asked) or STREAMS,
        pattern=re.compile(check_pattern(pattern)) if pattern else None,
        since_ns=session.now_ns() - _length_ns(since) if since else 0,
        lines=lines,
        is_all_allocations=all_allocs,
    )
    try:
        asyncio.run(_show(session, found.id, found.namespace, wanted, follows=follow))
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED_EXIT_CODE) from None


def _length_ns(text: str) -> int:
    from wharf.contract.wire.times import DurationError, parse_duration_ns

    try:
        return parse_duration_ns(text)
    except DurationError as error:
        raise CliError(f"--since {text}: {error}") from None


class LogFilter:
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
    ) -> None:
        self.group = group
        self.task = task
        self.streams = streams
        self.pattern = pattern
        self.since_ns = since_ns
        self.lines = lines
        self.is_all_allocations = is_all_allocations

    def select_tasks(self, allocations: "list[AllocationStub]") -> "list[tuple[AllocationStub, str]]":
        """Allocations with a task each, in the order of their names."""
        chosen = [one for one in allocations if not self.group or one.task_group == self.group]
        if not self.is_all_allocations:
            newest = {
                (one.name, one.node_id if one.job_type in ("system", "sysbatch") else ""): one
                for one in sorted(chosen, key=lambda one: one.create_index)
            }
            chosen = list(newest.values())
        return [
            (one, task)
            for one in sorted(chosen, key=lambda one: (one.name, one.create_index))
            for task in sorted(one.task_states or {})
            if not self.task or task == self.task
        ]


async def _show(session: Session, job_id: str, namespace: str, wanted: LogFilter, *, follows: bool) -> None:
    from wharf.contract.client import connect_async

    async with connect_async(session.settings, world=session.world) as client:
        sources: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        told: set[str] = set()
        index = 0
        try:
            while True:
                answer = await client.jobs.allocations(
                    job_id, namespace=namespace, index=index, wait_s=POLL_WAIT_S if index else None
                )
                index = answer.index
                for one, task in wanted.select_tasks(answer.value):
                    if one.id not in told and one.client_status.is_terminal:
                        told.add(one.id)
                        await _tell_of_kept(client, one)
                    for stream in wanted.streams:
                        if (one.id, task, stream) not in sources:
                            source = LogSource(session, client, one, task, stream, wanted)
                            work = session.world.start_task(
                                source.print_lines(is_following=follows), name=f"logs of {one.name}"
                            )
                            sources[one.id, task, stream] = work
                            if not follows:
                                await work  # One after the other, so that it can be read.
                for work in sources.values():
                    if work.done():
                        work.result()
                if not follows:
                    return
                if all(work.done() for work in sources.values()):
                    job = (await client.jobs.read(job_id, namespace=namespace)).value
                    if job.status == "dead":
                        return
        finally:
            for work in sources.values():
                work.cancel()
            await asyncio.gather(*sources.values(), return_exceptions=True)


async def _tell_of_kept(client: "AsyncClient", one: "AllocationStub") -> None:
    """Else whoever reads takes the end of a log for all of it."""
    from wharf.contract.client.errors import NotFound

    try:
        await client.files.stat(one.id, "alloc/logs", namespace=one.namespace)
    except NotFound as error:
        click.echo(f"wharf: {RETAINED_LOG_TEXT.format(name=one.name, why=error.text)}", err=True)


class LogSource:
    """One stream of one task."""

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
        self._one = allocation
        self._task = task
        self._stream = stream
        self._wanted = filter
        short = (
            f"{session.shorten_id(allocation.id)} {allocation.task_group}[{allocation.name.rpartition('[')[2]} {task}"
        )
        colour = PREFIX_COLOURS[zlib.crc32(f"{allocation.id}{task}".encode()) % len(PREFIX_COLOURS)]
        self._prefix = click.style(short, fg=colour) + (click.style("! ", fg="red") if stream == "stderr" else "  ")

    async def print_lines(self, *, is_following: bool) -> None:
        from wharf.contract.client import Unreachable
        from wharf.contract.client.errors import NotFound

        while True:
            try:
                if await self._is_wanted():
                    await self._show(follows=is_following)
                return
            except NotFound:
                # It has printed nothing, or its files are gone; or it is not begun yet, or its node is away for now.
                if not is_following or await is_finished(self._client, self._one):
                    return
            except Unreachable as error:
                if not is_following:
                    raise
                click.echo(f"{self._prefix}{LOG_INTERRUPTED_TEXT}: {error}", err=True)
                self._wanted_lines = 0
            await asyncio.sleep(RETRY_DELAY_S)

    _wanted_lines: int | None = None

    async def _is_wanted(self) -> bool:
        if not self._wanted.since_ns:
            return True
        from wharf.cli.common.times import parse_time, to_nanoseconds

        entries = await self._client.files.list(self._one.id, "alloc/logs", namespace=self._one.namespace)
        times = [
            to_nanoseconds(parse_time(entry.mod_time))
            for entry in entries
            if entry.name.startswith(f"{self._task}.{self._stream}.")
        ]
        return not times or max(times) >= self._wanted.since_ns

    async def _show(self, *, follows: bool) -> None:
        lines = self._wanted.lines if self._wanted_lines is None else self._wanted_lines
        origin, offset = get_read_position(None if lines is None else await self._bytes_of_last(lines))
        rest = b""
        async for piece in self._client.files.logs(
            self._one.id,
            self._task,
            type=self._stream,
            follow=follows,
            origin=origin,
            offset=offset,
            namespace=self._one.namespace,
        ):
            *whole, rest = (rest + piece).split(b"\n")
            self._write(whole)
        if rest:
            self._write([rest])

    async def _bytes_of_last(self, lines: int) -> int:
        from wharf.contract.client.errors import NotFound

        wanted = ESTIMATED_LINE_BYTES * max(lines, 1)
        while True:
            asked = self._client.files.logs(
                self._one.id, self._task, type=self._stream, origin="end", offset=wanted, namespace=self._one.namespace
            )
            try:
                text = b"".join([piece async for piece in asked])
            except NotFound:
                return 0
            if has_last_lines(text, lines, wanted):
                return len(take_last_lines(text, lines))
            wanted *= READ_GROWTH_FACTOR

    def _write(self, lines: list[bytes]) -> None:
        pattern = self._wanted.pattern
        for line in lines:
            text = line.decode(errors="replace").rstrip("\r")
            if pattern is None or pattern.search(text):
                click.echo(f"{self._prefix}{text}")
        sys.stdout.flush()
