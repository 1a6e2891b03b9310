"""`wharf operator snapshot`: saves, inspects and restores the whole state of a cluster.

By default through the API of the servers; with `--data-dir` or `--config`, directly in the storage of an agent.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError, report_startup_errors
from wharf.cli.common.local_output import output_options, print_document
from wharf.cli.common.options import confirm
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup
from wharf.cli.operator.agent_options import agent_options, read_agent_configuration
from wharf.world.durable_file import open_private_file, sync_file, sync_folder

if TYPE_CHECKING:
    from wharf.agent.snapshots.commands import SnapshotInfo

COMMANDS: Final = {
    "save": CommandEntry("wharf.cli.operator.snapshot", "save", "Save the whole state to one file."),
    "inspect": CommandEntry("wharf.cli.operator.snapshot", "inspect", "Check a snapshot and show its content."),
    "restore": CommandEntry(
        "wharf.cli.operator.snapshot", "restore", "Replace the whole state with that of a snapshot."
    ),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def snapshot() -> None:
    """Save, inspect and restore the whole state."""


@click.command(cls=ServerCommand)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@agent_options
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def save(session: Session, file: Path | None, paths: tuple[Path, ...], data_dir: Path | None, force: bool) -> None:
    """Save the whole state to one file.

    The servers send it. With --data-dir or --config it is read directly from the storage of that agent, which may be
    running or not. FILE is written completely or not at all; its default is wharf-<time>.snap in this folder.

    wharf operator snapshot save backup.snap
    """
    with report_startup_errors():
        from wharf.agent.snapshots import commands

        path = commands.get_snapshot_path(file, world=session.world, can_replace=force)
        if paths or data_dir is not None:
            info = asyncio.run(commands.run_save_command(read_agent_configuration(paths, data_dir).settings, path))
        else:
            info = _download_snapshot(session, path)
        document = {"File": str(path), "SnapshotIndex": info.trailer.standing.index, "SHA256": info.sha256}
        session.print_result(document, lambda: f"{path}\n{_render_info(info)}")


def _download_snapshot(session: Session, path: Path) -> "SnapshotInfo":
    """Download a snapshot to a temporary file, check it, and rename it to `path`. Raises CliError."""
    from wharf.agent.snapshots import commands

    draft = path.with_name(f".{path.name}.part")
    try:
        with open_private_file(draft) as target:
            for chunk in session.client.operator.save_snapshot():
                target.write(chunk)
            sync_file(target)
        info = commands.inspect_snapshot_file(draft)
        draft.replace(path)
        with suppress(OSError):  # The snapshot is in place, also if the folder cannot be synced.
            sync_folder(path.parent)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    return info


@click.command
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@output_options
def inspect(file: Path, as_json: bool) -> None:
    """Check a snapshot and show its content."""
    with report_startup_errors():
        from wharf.agent.snapshots import commands

        info = commands.inspect_snapshot_file(file)
        if as_json:
            print_document(info)
        else:
            click.echo(_render_info(info))


@click.command(cls=ServerCommand)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@agent_options
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def restore(session: Session, file: Path, paths: tuple[Path, ...], data_dir: Path | None, yes: bool) -> None:
    """Replace the whole state with that of a snapshot.

    The servers restore it and continue with the new state. With --data-dir or --config it is written directly to the
    storage of that agent, with the engine that its configuration names; this is how to move from SQLite to etcd.
    The file is checked first: a damaged one, or one of a newer version of Wharf, changes nothing.

    Nodes stop the tasks that the snapshot does not contain. Services that ran when it was saved run again.

    wharf operator snapshot restore backup.snap
    """
    with report_startup_errors():
        from wharf.agent.engine import describe_state_location
        from wharf.agent.snapshots import commands

        info = commands.inspect_snapshot_file(file)
        session.print_text(_render_info(info))
        settings = read_agent_configuration(paths, data_dir).settings if paths or data_dir is not None else None
        location = (
            describe_state_location(settings)
            if settings is not None
            else f"the servers at {', '.join(session.settings.addresses)}"
        )
        if not yes:
            effect = "Nodes stop all tasks that the snapshot does not contain."
            confirm(f"{effect} Replace the whole state ({location}) with this snapshot?")
        if settings is not None:
            index = asyncio.run(commands.run_restore_command(settings, file))
            session.print_text(f"restored {location} (index {index})")
        else:
            session.client.operator.restore_snapshot(file.read_bytes())
            index = info.trailer.standing.index
            session.print_text(f"restored the state of {location}")
        for need in info.header.needs:
            session.print_text(f"The restored state requires {need}.")
        if session.is_machine_readable:
            session.print_result({"File": str(file), "SnapshotIndex": index, "Requires": list(info.header.needs)}, str)


def _render_info(info: "SnapshotInfo") -> str:
    """Return when a snapshot was saved and what it contains."""
    from datetime import UTC, datetime

    from wharf.contract.model.times import SECOND

    saved = datetime.fromtimestamp(info.header.created_ns // SECOND, tz=UTC).isoformat().replace("+00:00", "Z")
    lines = [
        f"  saved   {saved} by {info.header.program}",
        f"  index   {info.trailer.standing.index}",
        f"  size    {info.size_bytes:,} bytes, sha256 {info.sha256}",
        *(f"  {count:>8,}  {table}" for table, count in sorted(info.trailer.rows.items())),
    ]
    return "\n".join(lines)
