"""."""

import asyncio
import sys
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.alloc.files import INTERRUPTED_EXIT_CODE, allocation_argument, write_output
from wharf.cli.common.errors import CliError
from wharf.cli.common.lookup import require_task
from wharf.cli.common.server_commands import QuietServerCommand, Session

if TYPE_CHECKING:
    from wharf.contract.client import AsyncClient
    from wharf.contract.model.allocations.allocation import AllocationStub

DEFAULT_TAIL_LINES: Final = 10


ESTIMATED_LINE_BYTES: Final = 1024
"""How long lines are taken to be at first, when the last ones are looked for."""


READ_GROWTH_FACTOR: Final = 16


MAX_TAIL_BYTES: Final = 64 << 20


RETRY_DELAY_S: Final = 1.0


LOG_INTERRUPTED_TEXT: Final = "the log broke off, and is followed again from its end"


@click.command(cls=QuietServerCommand)
@allocation_argument
@click.argument("task", required=False)
@click.option("--task", "task_option", default="", help="The same as TASK.")
@click.option("-f", "--follow", is_flag=True, help="Go on as more is printed.")
@click.option("--stderr", is_flag=True, help="What it prints as errors.")
@click.option("--stdout", is_flag=True, hidden=True)
@click.option("--tail", is_flag=True, help="Begin with the last lines.")
@click.option("-n", "lines", type=click.IntRange(0), default=None, help=f"So many of them.  [{DEFAULT_TAIL_LINES}]")
@click.option("-c", "count", type=click.IntRange(0), default=None, help="The last bytes, so many.")
def logs(
    session: Session,
    alloc_id: str,
    task: str | None,
    task_option: str,
    follow: bool,
    stderr: bool,
    stdout: bool,  # noqa: ARG001  # What is read without being asked for.
    tail: bool,
    lines: int | None,
    count: int | None,
) -> None:
    """Write out what a task prints.

    Without TASK the only one that the allocation has.

    wharf alloc logs -f 1a2b3c4d
    """
    from wharf.cli.common.lookup import find_allocation

    found = find_allocation(session, alloc_id)
    name = require_task(found, task or task_option)
    stream = "stderr" if stderr else "stdout"
    _tell_of_kept(session, found)
    if count is None and (tail or lines is not None):
        count = _bytes_of_last(session, found, name, stream, DEFAULT_TAIL_LINES if lines is None else lines)
    if follow:
        try:
            asyncio.run(_follow(session, found, name, stream, count))
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED_EXIT_CODE) from None
        return
    origin, offset = get_read_position(count)
    write_output(
        session.client.files.logs(found.id, name, type=stream, origin=origin, offset=offset, namespace=found.namespace)
    )


def get_read_position(last_bytes: int | None) -> tuple[str, int]:
    """Where a reading begins, as servers are told it: so far from its end, or at its begin."""
    return ("", 0) if last_bytes is None else ("end", last_bytes)


async def _follow(session: Session, found: "AllocationStub", task: str, stream: str, last_bytes: int | None) -> None:
    """Until the task is over. Its node, or who passes it on, may go away in between."""
    from wharf.contract.client import Unreachable, connect_async
    from wharf.contract.client.errors import NotFound

    is_away, has_begun = False, False
    async with connect_async(session.settings, world=session.world) as client:
        while True:
            origin, offset = get_read_position(last_bytes)
            try:
                async for piece in client.files.logs(
                    found.id, task, type=stream, follow=True, origin=origin, offset=offset, namespace=found.namespace
                ):
                    is_away, has_begun = False, True
                    sys.stdout.buffer.write(piece)
                    sys.stdout.buffer.flush()
                return
            except (Unreachable, NotFound) as error:
                if not has_begun:
                    raise
                if not is_away:
                    click.echo(f"wharf: {LOG_INTERRUPTED_TEXT}: {error}", err=True)
                if await is_finished(client, found):
                    return
                is_away, last_bytes = True, 0
                await asyncio.sleep(RETRY_DELAY_S)


async def is_finished(client: "AsyncClient", allocation: "AllocationStub") -> bool:
    """Whether its tasks will print nothing more."""
    return (await client.allocations.read(allocation.id)).value.client_status.is_terminal


def _tell_of_kept(session: Session, found: "AllocationStub") -> None:
    """Else whoever reads takes the end of a log for all of it."""
    from wharf.contract.client.errors import NotFound

    if not found.client_status.is_terminal:
        return
    try:
        session.client.files.stat(found.id, "alloc/logs", namespace=found.namespace)
    except NotFound as error:
        click.echo(f"wharf: {RETAINED_LOG_TEXT.format(name=found.name, why=error.text)}", err=True)


def _bytes_of_last(session: Session, found: "AllocationStub", task: str, stream: str, lines: int) -> int:
    """How long the last lines are, of what is there now."""
    from wharf.contract.client.errors import NotFound

    wanted = ESTIMATED_LINE_BYTES * max(lines, 1)
    while True:
        asked = session.client.files.logs(
            found.id, task, type=stream, origin="end", offset=wanted, namespace=found.namespace
        )
        try:
            text = b"".join(asked)
        except NotFound:
            return 0  # Nothing is there yet.
        if has_last_lines(text, lines, wanted):
            return len(take_last_lines(text, lines))
        wanted *= READ_GROWTH_FACTOR


def has_last_lines(text: bytes, count: int, requested_bytes: int) -> bool:
    """Whether so many lines are whole in it, of a log that was asked for its last bytes."""
    return text.count(b"\n") > count or len(text) < requested_bytes or requested_bytes >= MAX_TAIL_BYTES or not count


def take_last_lines(text: bytes, count: int) -> bytes:
    """One without an end counts, too. A line ends with `\\n` alone: what draws progress ends its tries otherwise."""
    if not count:
        return b""
    end = len(text.removesuffix(b"\n"))
    for _ in range(count):
        end = text.rfind(b"\n", 0, end)
        if end < 0:
            return text
    return text[end + 1 :]


RETAINED_LOG_TEXT: Final = "its node does not have its files any more, or is away: of {name} this is the end, as far as servers keep it ({why})"


def check_pattern(pattern: str) -> "str":
    import re

    try:
        re.compile(pattern)
    except re.error as error:
        raise CliError(f"--grep {pattern}: {error}") from None
    return pattern
