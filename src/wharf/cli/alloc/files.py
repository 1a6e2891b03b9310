"""`wharf alloc fs`: lists and prints the files of an allocation, which any server fetches from the node."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.options import allocation_argument, raw_option
from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.common.task_output import TaskOutput
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from wharf.contract.wire.allocations.messages import AllocFileInfo

MODULE: Final = "wharf.cli.alloc.files"
FILE_COMMANDS: Final = {
    "ls": CommandEntry(MODULE, "list_files", "List a folder of an allocation."),
    "cat": CommandEntry(MODULE, "cat", "Print a file of an allocation."),
    "stat": CommandEntry(MODULE, "stat", "Show size, time and mode of a file of an allocation."),
}

NO_FOLDER_ENDING: Final = "is not a directory"
"""The end of a node's text if the path that is to be listed names a file."""


def write_output(chunks: Iterable[bytes], *, is_raw: bool) -> None:
    """Write chunks to standard output as they arrive.

    A terminal gets no control sequences of a task, unless `is_raw`.
    """
    output = TaskOutput(is_raw=is_raw)
    for chunk in chunks:
        output.write(chunk)
    output.finish()


@click.group(cls=LazyGroup, entries=FILE_COMMANDS, default_command="ls")
def fs() -> None:
    """Read the files of an allocation. `wharf alloc fs ALLOC` is the same as `wharf alloc fs ls ALLOC`."""


@click.command(cls=ServerCommand)
@allocation_argument
@click.argument("path", default="/")
def list_files(session: Session, alloc_id: str, path: str) -> None:
    """List a folder of an allocation. A path of a file prints the file.

    wharf alloc fs ls 1a2b3c4d alloc/logs
    """
    from wharf.cli.common.lookup import find_allocation
    from wharf.cli.common.rendering import render_table
    from wharf.contract.client.errors import RequestRefused

    found = find_allocation(session, alloc_id)
    try:
        entries = session.client.files.list(found.id, path, namespace=found.namespace)
    except RequestRefused as error:
        if session.is_machine_readable or not error.text.endswith(NO_FOLDER_ENDING):
            raise
        write_output(session.client.files.cat(found.id, path, namespace=found.namespace), is_raw=False)
        return
    rows = [(entry.file_mode, entry.size, _format_modified(session, entry), _format_name(entry)) for entry in entries]
    session.print_result(entries, lambda: render_table(("Mode", "Bytes", "Modified", "Name"), rows))


@click.command(cls=QuietServerCommand)
@allocation_argument
@click.argument("path")
@raw_option
def cat(session: Session, alloc_id: str, path: str, raw: bool) -> None:
    """Print a file of an allocation.

    wharf alloc fs cat 1a2b3c4d web/local/settings.json
    """
    from wharf.cli.common.lookup import find_allocation

    found = find_allocation(session, alloc_id)
    write_output(session.client.files.cat(found.id, path, namespace=found.namespace), is_raw=raw)


@click.command(cls=ServerCommand)
@allocation_argument
@click.argument("path")
def stat(session: Session, alloc_id: str, path: str) -> None:
    """Show size, time and mode of a file of an allocation.

    wharf alloc fs stat 1a2b3c4d web/local/settings.json
    """
    from wharf.cli.common.lookup import find_allocation
    from wharf.cli.common.rendering import render_pairs

    found = find_allocation(session, alloc_id)
    entry = session.client.files.stat(found.id, path, namespace=found.namespace)
    pairs = [
        ("Name", _format_name(entry)),
        ("Mode", entry.file_mode),
        ("Bytes", entry.size),
        ("Modified", _format_modified(session, entry)),
        ("Content", entry.content_type or ""),
    ]
    session.print_result(entry, lambda: render_pairs(pairs))


def _format_name(entry: "AllocFileInfo") -> str:
    return f"{entry.name}/" if entry.is_dir and entry.name != "/" else entry.name


def _format_modified(session: Session, entry: "AllocFileInfo") -> str:
    """Return when a file was modified; a time that cannot be parsed is returned unchanged."""
    from wharf.cli.common.times import parse_time

    try:
        return session.format_time(parse_time(entry.mod_time))
    except ValueError:
        return entry.mod_time
