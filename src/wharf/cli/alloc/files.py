"""What the tasks of an allocation print, and the files they write: read on their node, through any server."""

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.completion import complete_allocations
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from wharf.contract.wire.allocations.messages import AllocFileInfo

MODULE: Final = "wharf.cli.alloc.files"
FILE_COMMANDS: Final = {
    "ls": CommandEntry(MODULE, "list_files", "List a folder of an allocation."),
    "cat": CommandEntry(MODULE, "cat", "Write out a file of an allocation."),
    "stat": CommandEntry(MODULE, "stat", "Show what is known of a file of an allocation."),
}
INTERRUPTED_EXIT_CODE: Final = 130
allocation_argument = click.argument("alloc_id", metavar="ALLOC", shell_complete=complete_allocations)


def write_output(pieces: Iterable[bytes]) -> None:
    """As they come. Whoever has had enough ends it quietly."""
    try:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED_EXIT_CODE) from None


@click.group(cls=LazyGroup, entries=FILE_COMMANDS, default="ls")
def fs() -> None:
    """Read the files of an allocation. `wharf alloc fs ALLOC` is the same as `wharf alloc fs ls ALLOC`."""


@click.command(cls=ServerCommand)
@allocation_argument
@click.argument("path", default="/")
def list_files(session: Session, alloc_id: str, path: str) -> None:
    """List a folder of an allocation.

    wharf alloc fs ls 1a2b3c4d alloc/logs
    """
    from wharf.cli.common.lookup import find_allocation
    from wharf.cli.common.rendering import render_table

    found = find_allocation(session, alloc_id)
    entries = session.client.files.list(found.id, path, namespace=found.namespace)
    rows = [(entry.file_mode, entry.size, _when(session, entry), _shown(entry)) for entry in entries]
    session.print_result(entries, lambda: render_table(("Mode", "Bytes", "Modified", "Name"), rows))


@click.command(cls=QuietServerCommand)
@allocation_argument
@click.argument("path")
def cat(session: Session, alloc_id: str, path: str) -> None:
    """Write out a file of an allocation.

    wharf alloc fs cat 1a2b3c4d web/local/settings.json
    """
    from wharf.cli.common.lookup import find_allocation

    found = find_allocation(session, alloc_id)
    write_output(session.client.files.cat(found.id, path, namespace=found.namespace))


@click.command(cls=ServerCommand)
@allocation_argument
@click.argument("path")
def stat(session: Session, alloc_id: str, path: str) -> None:
    """Show what is known of a file of an allocation.

    wharf alloc fs stat 1a2b3c4d web/local/settings.json
    """
    from wharf.cli.common.lookup import find_allocation
    from wharf.cli.common.rendering import render_pairs

    found = find_allocation(session, alloc_id)
    one = session.client.files.stat(found.id, path, namespace=found.namespace)
    facts = [
        ("Name", _shown(one)),
        ("Mode", one.file_mode),
        ("Bytes", one.size),
        ("Modified", _when(session, one)),
        ("Content", one.content_type or ""),
    ]
    session.print_result(one, lambda: render_pairs(facts))


def _shown(entry: "AllocFileInfo") -> str:
    return f"{entry.name}/" if entry.is_dir and entry.name != "/" else entry.name


def _when(session: Session, entry: "AllocFileInfo") -> str:
    from wharf.cli.common.times import parse_time

    try:
        return session.format_time(parse_time(entry.mod_time))
    except ValueError:
        return entry.mod_time


def split_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines without their ends; at the end also one that is not whole."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest
