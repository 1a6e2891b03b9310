"""What the tasks of an allocation print, and the files they write: read on their node, through any server."""

import asyncio
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.completing import complete_allocations
from wharf.cli.failing import Failed
from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Quiet, Speaking, Talk
from wharf.cli.tasks import the_task

if TYPE_CHECKING:
    from wharf.client import AsyncClient
    from wharf.model.allocation import AllocationStub
    from wharf.wire.client_shapes import AllocFileInfo

HERE: Final = "wharf.cli.alloc_files"
FILES: Final = {
    "ls": Entry(HERE, "list_files", "List a folder of an allocation."),
    "cat": Entry(HERE, "cat", "Write out a file of an allocation."),
    "stat": Entry(HERE, "stat", "Show what is known of a file of an allocation."),
}
TAIL_LINES: Final = 10
LINE_BYTES: Final = 1024
"""How long lines are taken to be at first, when the last ones are looked for."""
LONGER: Final = 16
LAST_BYTES_MAX: Final = 64 << 20
INTERRUPTED: Final = 130
AGAIN_S: Final = 1.0
BROKE_OFF: Final = "the log broke off, and is followed again from its end"
an_allocation = click.argument("alloc_id", metavar="ALLOC", shell_complete=complete_allocations)


@click.command(cls=Quiet)
@an_allocation
@click.argument("task", required=False)
@click.option("--task", "task_option", default="", help="The same as TASK.")
@click.option("-f", "--follow", is_flag=True, help="Go on as more is printed.")
@click.option("--stderr", is_flag=True, help="What it prints as errors.")
@click.option("--stdout", is_flag=True, hidden=True)
@click.option("--tail", is_flag=True, help="Begin with the last lines.")
@click.option("-n", "lines", type=click.IntRange(0), default=None, help=f"So many of them.  [{TAIL_LINES}]")
@click.option("-c", "count", type=click.IntRange(0), default=None, help="The last bytes, so many.")
def logs(
    talk: Talk,
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
    from wharf.cli.finding import find_allocation

    found = find_allocation(talk, alloc_id)
    name = the_task(found, task or task_option)
    stream = "stderr" if stderr else "stdout"
    _tell_of_kept(talk, found)
    if count is None and (tail or lines is not None):
        count = _bytes_of_last(talk, found, name, stream, TAIL_LINES if lines is None else lines)
    if follow:
        try:
            asyncio.run(_follow(talk, found, name, stream, count))
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        return
    origin, offset = place_of(count)
    write_out(
        talk.client.files.logs(found.id, name, type=stream, origin=origin, offset=offset, namespace=found.namespace)
    )


def place_of(last_bytes: int | None) -> tuple[str, int]:
    """Where a reading begins, as servers are told it: so far from its end, or at its begin."""
    return ("", 0) if last_bytes is None else ("end", last_bytes)


async def _follow(talk: Talk, found: "AllocationStub", task: str, stream: str, last_bytes: int | None) -> None:
    """Until the task is over. Its node, or who passes it on, may go away in between."""
    from wharf.client import Unreachable, connect_async
    from wharf.client.errors import NotFound

    is_away, has_begun = False, False
    async with connect_async(talk.settings, world=talk.world) as client:
        while True:
            origin, offset = place_of(last_bytes)
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
                    click.echo(f"wharf: {BROKE_OFF}: {error}", err=True)
                if await is_over(client, found):
                    return
                is_away, last_bytes = True, 0
                await asyncio.sleep(AGAIN_S)


async def is_over(client: "AsyncClient", found: "AllocationStub") -> bool:
    """Whether its tasks will print nothing more."""
    return (await client.allocations.read(found.id)).value.client_status.is_terminal


def _tell_of_kept(talk: Talk, found: "AllocationStub") -> None:
    """Else whoever reads takes the end of a log for all of it."""
    from wharf.client.errors import NotFound

    if not found.client_status.is_terminal:
        return
    try:
        talk.client.files.stat(found.id, "alloc/logs", namespace=found.namespace)
    except NotFound as error:
        click.echo(f"wharf: {KEPT.format(name=found.name, why=error.text)}", err=True)


def _bytes_of_last(talk: Talk, found: "AllocationStub", task: str, stream: str, lines: int) -> int:
    """How long the last lines are, of what is there now."""
    from wharf.client.errors import NotFound

    wanted = LINE_BYTES * max(lines, 1)
    while True:
        asked = talk.client.files.logs(
            found.id, task, type=stream, origin="end", offset=wanted, namespace=found.namespace
        )
        try:
            text = b"".join(asked)
        except NotFound:
            return 0  # Nothing is there yet.
        if holds_last(text, lines, wanted):
            return len(last_lines(text, lines))
        wanted *= LONGER


def holds_last(text: bytes, count: int, wanted: int) -> bool:
    """Whether so many lines are whole in it, of a log that was asked for its last bytes."""
    return text.count(b"\n") > count or len(text) < wanted or wanted >= LAST_BYTES_MAX or not count


def last_lines(text: bytes, count: int) -> bytes:
    """One without an end counts, too. A line ends with `\\n` alone: what draws progress ends its tries otherwise."""
    if not count:
        return b""
    end = len(text.removesuffix(b"\n"))
    for _ in range(count):
        end = text.rfind(b"\n", 0, end)
        if end < 0:
            return text
    return text[end + 1 :]


KEPT: Final = "its node does not have its files any more, or is away: of {name} this is the end, as far as servers keep it ({why})"


def write_out(pieces: Iterable[bytes]) -> None:
    """As they come. Whoever has had enough ends it quietly."""
    try:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None


@click.group(cls=LazyGroup, entries=FILES, default="ls")
def fs() -> None:
    """Read the files of an allocation. `wharf alloc fs ALLOC` is the same as `wharf alloc fs ls ALLOC`."""


@click.command(cls=Speaking)
@an_allocation
@click.argument("path", default="/")
def list_files(talk: Talk, alloc_id: str, path: str) -> None:
    """List a folder of an allocation.

    wharf alloc fs ls 1a2b3c4d alloc/logs
    """
    from wharf.cli.finding import find_allocation
    from wharf.cli.tables import table

    found = find_allocation(talk, alloc_id)
    entries = talk.client.files.list(found.id, path, namespace=found.namespace)
    rows = [(entry.file_mode, entry.size, _when(talk, entry), _shown(entry)) for entry in entries]
    talk.show(entries, lambda: table(("Mode", "Bytes", "Modified", "Name"), rows))


@click.command(cls=Quiet)
@an_allocation
@click.argument("path")
def cat(talk: Talk, alloc_id: str, path: str) -> None:
    """Write out a file of an allocation.

    wharf alloc fs cat 1a2b3c4d web/local/settings.json
    """
    from wharf.cli.finding import find_allocation

    found = find_allocation(talk, alloc_id)
    write_out(talk.client.files.cat(found.id, path, namespace=found.namespace))


@click.command(cls=Speaking)
@an_allocation
@click.argument("path")
def stat(talk: Talk, alloc_id: str, path: str) -> None:
    """Show what is known of a file of an allocation.

    wharf alloc fs stat 1a2b3c4d web/local/settings.json
    """
    from wharf.cli.finding import find_allocation
    from wharf.cli.tables import pairs

    found = find_allocation(talk, alloc_id)
    one = talk.client.files.stat(found.id, path, namespace=found.namespace)
    facts = [
        ("Name", _shown(one)),
        ("Mode", one.file_mode),
        ("Bytes", one.size),
        ("Modified", _when(talk, one)),
        ("Content", one.content_type or ""),
    ]
    talk.show(one, lambda: pairs(facts))


def _shown(entry: "AllocFileInfo") -> str:
    return f"{entry.name}/" if entry.is_dir and entry.name != "/" else entry.name


def _when(talk: Talk, entry: "AllocFileInfo") -> str:
    from wharf.cli.moments import read_date

    try:
        return talk.when(read_date(entry.mod_time))
    except ValueError:
        return entry.mod_time


def lines_of(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines without their ends; at the end also one that is not whole."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest


def check_pattern(pattern: str) -> "str":
    import re

    try:
        re.compile(pattern)
    except re.error as error:
        raise Failed(f"--grep {pattern}: {error}") from None
    return pattern
