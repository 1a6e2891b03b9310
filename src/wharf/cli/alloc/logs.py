"""`wharf alloc logs`: prints or follows the log of one task; also helpers for reading the end of a log."""

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from wharf.cli.alloc.files import write_output
from wharf.cli.common.errors import CliError
from wharf.cli.common.lookup import require_task
from wharf.cli.common.options import allocation_argument, raw_option
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import QuietServerCommand, Session
from wharf.cli.common.task_output import TaskOutput

if TYPE_CHECKING:
    from wharf.cli.common.outages import Outage
    from wharf.contract.client import AsyncClient
    from wharf.contract.client.streams import LogChunk
    from wharf.contract.model.allocations.allocation import AllocationStub

DEFAULT_TAIL_LINES: Final = 10
ESTIMATED_LINE_BYTES: Final = 1024
"""First estimate of the length of a line, when the last lines of a log are read."""
READ_GROWTH_FACTOR: Final = 16
"""How much more of the end of a log is read if the first read had too few lines."""
MAX_TAIL_BYTES: Final = 64 << 20
"""Limit of the end of a log that is read to find its last lines; protects memory."""
LOG_INTERRUPTED_TEXT: Final = "the log stream was interrupted; it continues where it was"
RETAINED_LOG_TEXT: Final = (
    "the node of {name} no longer has these files, or does not reply ({reason}); "
    "showing the last lines kept by the servers"
)


@click.command(cls=QuietServerCommand)
@allocation_argument
@click.argument("task", required=False)
@click.option("--task", "task_option", default="", help="The same as TASK.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new output.")
@click.option("--stderr", is_flag=True, help="Standard error instead of standard output.")
@click.option("--stdout", is_flag=True, hidden=True)
@click.option("--tail", is_flag=True, help="Begin with the last lines.")
@click.option(
    "-n", "lines", type=click.IntRange(0), default=None, help=f"Begin with the last N lines.  [{DEFAULT_TAIL_LINES}]"
)
@raw_option
@click.option("-c", "count", type=click.IntRange(0), default=None, help="Begin with the last N bytes.")
def logs(
    session: Session,
    alloc_id: str,
    task: str | None,
    task_option: str,
    follow: bool,
    stderr: bool,
    stdout: bool,  # noqa: ARG001  # Accepted for Nomad's scripts: standard output is the default.
    tail: bool,
    lines: int | None,
    count: int | None,
    raw: bool,
) -> None:
    """Print the log of a task.

    TASK may be omitted if the allocation has only one task.

    wharf alloc logs -f 1a2b3c4d
    """
    from wharf.cli.common.lookup import find_allocation

    found = find_allocation(session, alloc_id)
    name = require_task(found, task or task_option)
    stream = "stderr" if stderr else "stdout"
    _report_if_files_are_gone(session, found)
    output = TaskOutput(is_raw=raw)
    position = None
    origin, offset = get_read_position(count)
    if count is None and (tail or lines is not None):
        log_end = _read_last_lines(session, found, name, stream, DEFAULT_TAIL_LINES if lines is None else lines)
        output.write(log_end.text)
        position = log_end.position
        if not follow or is_retained(position):
            output.finish()
            return
    if follow:
        asyncio.run(_follow_log(session, found, name, stream, count, position, output))
        return
    write_output(
        session.client.files.logs(found.id, name, type=stream, origin=origin, offset=offset, namespace=found.namespace),
        is_raw=raw,
    )


def get_read_position(last_bytes: int | None) -> tuple[str, int]:
    """Return the parameters `origin` and `offset` of the API with which the last bytes of a log are read; None stands
    for the whole log.
    """
    return ("", 0) if last_bytes is None else ("end", last_bytes)


async def _follow_log(
    session: Session,
    allocation: "AllocationStub",
    task: str,
    stream: str,
    last_bytes: int | None,
    position: "LogChunk | None",
    output: TaskOutput,
) -> None:
    """Print a log until its task ends. A stream that the client could not resume is opened again where it broke off.

    `position` is the last part of the log that was printed already; without one, the last bytes are printed first.
    Raises CliError if it cannot be opened again for too long.
    """
    from wharf.contract.client import Unreachable, connect_async
    from wharf.contract.client.errors import NotFound

    was_finished = False
    origin, offset = get_read_position(last_bytes)
    file = ""
    if position is not None:
        origin, offset, file = "start", position.offset, position.file
    outage = create_log_outage(session, allocation)
    async with connect_async(session.settings, world=session.world) as client:
        while True:
            try:
                async for chunk in client.files.logs(
                    allocation.id,
                    task,
                    type=stream,
                    follow=True,
                    origin=origin,
                    offset=offset,
                    file=file,
                    namespace=allocation.namespace,
                ):
                    origin, offset, file = "start", chunk.offset, chunk.file
                    outage.end()
                    output.write(chunk)
                output.finish()
                return
            except (Unreachable, NotFound) as error:
                if not file:
                    raise
                if was_finished:
                    return  # The rest of the log was requested since the allocation ended, and cannot be read.
                was_finished = await is_finished(client, allocation)
                await asyncio.sleep(outage.next_pause_s(error))


def create_log_outage(session: Session, allocation: "AllocationStub") -> "Outage":
    """Return the limit for the time in which a broken log stream cannot be opened again."""
    from wharf.cli.common.outages import Outage

    return Outage(
        session,
        f"stopped following the log; `wharf alloc status {session.shorten_id(allocation.id)}` shows the allocation",
        notice=LOG_INTERRUPTED_TEXT,
    )


async def is_finished(client: "AsyncClient", allocation: "AllocationStub") -> bool:
    """Return whether an allocation has ended, so that its tasks print nothing more. `False` without a reply."""
    from wharf.contract.client import Unreachable
    from wharf.contract.client.errors import NotFound

    try:
        return (await client.allocations.read(allocation.id)).value.client_status.is_terminal
    except NotFound:
        return True
    except Unreachable:
        return False


def _report_if_files_are_gone(session: Session, allocation: "AllocationStub") -> None:
    """Print a note if the node no longer has the log files: servers then return only the last part of the log."""
    from wharf.contract.client.errors import NotFound

    if not allocation.client_status.is_terminal:
        return
    try:
        session.client.files.stat(allocation.id, "alloc/logs", namespace=allocation.namespace)
    except NotFound as error:
        print_notice(f"wharf: {RETAINED_LOG_TEXT.format(name=allocation.name, reason=error.text)}")


class LogEnd(NamedTuple):
    """The last lines of a log, and the part of the log with which they end.

    Both are from one request, so that a log continues after `position` without a gap. `None`: the log is empty.
    """

    text: bytes
    position: "LogChunk | None"


def is_retained(chunk: "LogChunk | None") -> bool:
    """Return whether a part of a log is from the servers, because the node no longer has the file or does not reply."""
    from wharf.contract.wire.allocations.log_frames import RETAINED_LOG_FOLDER

    return chunk is not None and chunk.file.startswith(f"{RETAINED_LOG_FOLDER}/")


def _read_last_lines(session: Session, allocation: "AllocationStub", task: str, stream: str, lines: int) -> LogEnd:
    """Return the last lines of a log. Reads more and more of its end until it has enough lines."""
    from wharf.contract.client.errors import NotFound

    read_bytes = ESTIMATED_LINE_BYTES * max(lines, 1)
    while True:
        chunks = session.client.files.logs(
            allocation.id, task, type=stream, origin="end", offset=read_bytes, namespace=allocation.namespace
        )
        try:
            parts = list(chunks)
        except NotFound:
            return LogEnd(b"", None)  # The task has printed nothing yet.
        text = b"".join(parts)
        if has_last_lines(text, lines, read_bytes):
            return LogEnd(take_last_lines(text, lines), parts[-1] if parts else None)
        read_bytes *= READ_GROWTH_FACTOR


def has_last_lines(text: bytes, count: int, requested_bytes: int) -> bool:
    """Return whether `text`, the end of a log, is long enough to contain the last `count` lines.

    It is also long enough if it is the whole log (shorter than the `requested_bytes`), or if no more may be read
    (`MAX_TAIL_BYTES`).
    """
    return text.count(b"\n") > count or len(text) < requested_bytes or requested_bytes >= MAX_TAIL_BYTES or not count


def take_last_lines(text: bytes, count: int) -> bytes:
    """Return the last `count` lines of a text; an unfinished last line counts.

    Only `\\n` ends a line, because progress bars print `\\r` within a line.
    """
    if not count:
        return b""
    end = len(text.removesuffix(b"\n"))
    for _ in range(count):
        end = text.rfind(b"\n", 0, end)
        if end < 0:
            return text
    return text[end + 1 :]


def check_pattern(pattern: str) -> "str":
    """Return the regular expression of `--grep` if it is valid. Raises CliError."""
    import re

    try:
        re.compile(pattern)
    except re.error as error:
        raise CliError(f"--grep {pattern}: {error}") from None
    return pattern
