"""`wharf operator snapshot`: save, inspect and restore the whole state.

The servers are asked, unless an agent's folder or configuration is named: then it is read and written where it is kept.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError, report_startup_errors
from wharf.cli.common.server_commands import QuietServerCommand, Session
from wharf.cli.lazy_group import CommandEntry, LazyGroup
from wharf.cli.operator.agent_options import agent_options, read_agent_configuration

if TYPE_CHECKING:
    from wharf.agent.snapshots.commands import SnapshotInfo

COMMANDS: Final = {
    "save": CommandEntry("wharf.cli.operator.snapshot", "save", "Save the whole state to one file."),
    "inspect": CommandEntry("wharf.cli.operator.snapshot", "inspect", "Check a snapshot and say what it holds."),
    "restore": CommandEntry("wharf.cli.operator.snapshot", "restore", "Replace the whole state by that of a snapshot."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def snapshot() -> None:
    """Save, inspect and restore the whole state."""


@click.command(cls=QuietServerCommand)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@agent_options
@click.option("--force", is_flag=True, help="Replace FILE where it is there already.")
def save(session: Session, file: Path | None, places: tuple[Path, ...], data_dir: Path | None, force: bool) -> None:
    """Save the whole state to one file.

    The servers are asked for it. With --data-dir or --config it is read straight from where that agent keeps it, beside
    the running agent or without one. The file appears whole or not at all. Without FILE it is called wharf-<time>.snap
    and lies here.

    wharf operator snapshot save backup.snap
    """
    with report_startup_errors():
        from wharf.agent.snapshots import commands

        path = commands.get_snapshot_path(file, world=session.world, can_replace=force)
        if places or data_dir is not None:
            facts = asyncio.run(commands.run_save_command(read_agent_configuration(places, data_dir).settings, path))
        else:
            facts = _fetch(session, path)
        click.echo(f"{path}")
        _show(facts)


def _fetch(session: Session, path: Path) -> "SnapshotInfo":
    """What servers send, checked before it is called by its name."""
    from wharf.agent.snapshots import commands

    draft = path.with_name(f".{path.name}.part")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as writing:
            for piece in session.client.operator.save_snapshot():
                writing.write(piece)
            writing.flush()
            os.fsync(writing.fileno())
        facts = commands.inspect_snapshot_file(draft)
        draft.replace(path)
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    return facts


@click.command
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def inspect(file: Path, as_json: bool) -> None:
    """Check a snapshot and say what it holds."""
    with report_startup_errors():
        from wharf.agent.snapshots import commands

        facts = commands.inspect_snapshot_file(file)
        if as_json:
            import msgspec

            click.echo(msgspec.json.format(msgspec.json.encode(facts)))
        else:
            _show(facts)


def _ask(question: str) -> None:
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        if not sys.stdin.isatty():
            click.echo("\nNobody said yes; scripts say --yes", err=True)
        raise


@click.command(cls=QuietServerCommand)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@agent_options
@click.option("--yes", is_flag=True, help="Do not ask before the state is replaced.")
def restore(session: Session, file: Path, places: tuple[Path, ...], data_dir: Path | None, yes: bool) -> None:
    """Replace the whole state by that of a snapshot.

    The servers are told to, and go on with the new state. With --data-dir or --config it is written straight to where
    that agent keeps its state, into whatever engine its configuration names: this is how one moves from SQLite to etcd.
    The file is checked first; one that is damaged, or newer than this program, changes nothing.

    wharf operator snapshot restore backup.snap
    """
    with report_startup_errors():
        from wharf.agent.engine import describe_state_location
        from wharf.agent.snapshots import commands

        facts = commands.inspect_snapshot_file(file)
        _show(facts)
        settings = read_agent_configuration(places, data_dir).settings if places or data_dir is not None else None
        place = (
            describe_state_location(settings)
            if settings is not None
            else f"that of the servers at {', '.join(session.settings.addresses)}"
        )
        if not yes:
            _ask(f"Replace the whole state, {place}, by this?")
        if settings is not None:
            index = asyncio.run(commands.run_restore_command(settings, file))
            click.echo(f"restored: {place}, now at index {index}")
        else:
            session.client.operator.restore_snapshot(file.read_bytes())
            click.echo(f"restored: the whole state, {place}")
        for need in facts.header.needs:
            click.echo(f"It needs {need}.")


def _show(facts: "SnapshotInfo") -> None:
    from datetime import UTC, datetime

    from wharf.contract.model.times import SECOND

    saved = datetime.fromtimestamp(facts.header.created_ns // SECOND, tz=UTC).isoformat().replace("+00:00", "Z")
    click.echo(f"  saved   {saved} by {facts.header.program}")
    click.echo(f"  index   {facts.trailer.standing.index}")
    click.echo(f"  size    {facts.size_bytes:,} bytes, sha256 {facts.sha256}")
    for table, count in sorted(facts.trailer.rows.items()):
        click.echo(f"  {count:>8,}  {table}")
