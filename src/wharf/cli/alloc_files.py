"""What the tasks of an allocation print, and the files they write: read on their node, through any server."""

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
"""How long lines are taken to be, when the last ones are looked for."""
INTERRUPTED: Final = 130
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
    if count is None and (tail or lines is not None):
        count = _bytes_of_last(talk, found, name, stream, TAIL_LINES if lines is None else lines)
    write_out(
        talk.client.files.logs(
            found.id,
            name,
            type=stream,
            follow=follow,
            origin="end" if count is not None else "",
            offset=count or 0,
            namespace=found.namespace,
        )
    )


def _bytes_of_last(talk: Talk, found: "AllocationStub", task: str, stream: str, lines: int) -> int:
    """How long the last lines are, of what is there now."""
    from wharf.client.errors import NotFound

    wanted = max(lines, 1) * LINE_BYTES
    asked = talk.client.files.logs(found.id, task, type=stream, origin="end", offset=wanted, namespace=found.namespace)
    try:
        text = b"".join(asked)
    except NotFound:
        return 0  # Nothing is there yet.
    return len(last_lines(text, lines))


def last_lines(text: bytes, count: int) -> bytes:
    """One without an end counts, too."""
    return b"".join(text.splitlines(keepends=True)[-count:]) if count else b""


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
