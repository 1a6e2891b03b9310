"""`wharf operator snapshot`: save, inspect and restore the whole state, straight from and into where it is kept."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.failing import plainly
from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.place import of_an_agent, read

if TYPE_CHECKING:
    from wharf.agent.saving import SnapshotFacts

COMMANDS: Final = {
    "save": Entry("wharf.cli.snapshot", "save", "Save the whole state to one file."),
    "inspect": Entry("wharf.cli.snapshot", "inspect", "Check a snapshot and say what it holds."),
    "restore": Entry("wharf.cli.snapshot", "restore", "Replace the whole state by that of a snapshot."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def snapshot() -> None:
    """Save, inspect and restore the whole state."""


@click.command
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@of_an_agent
@click.option("--force", is_flag=True, help="Replace FILE where it is there already.")
def save(file: Path | None, places: tuple[Path, ...], data_dir: Path | None, force: bool) -> None:
    """Save the whole state to one file.

    The file appears whole or not at all. Works beside a running agent and without one. Without FILE it is called
    wharf-<time>.snap and lies here.
    """
    with plainly():
        from wharf.agent import saving

        path, facts = asyncio.run(saving.save_by_command(read(places, data_dir).settings, file, may_replace=force))
        click.echo(f"{path}")
        _show(facts)


@click.command
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def inspect(file: Path, as_json: bool) -> None:
    """Check a snapshot and say what it holds."""
    with plainly():
        from wharf.agent import saving

        facts = saving.inspect(file)
        if as_json:
            import msgspec

            click.echo(msgspec.json.format(msgspec.json.encode(facts)))
        else:
            _show(facts)


@click.command
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@of_an_agent
@click.option("--yes", is_flag=True, help="Do not ask before the state is replaced.")
def restore(file: Path, places: tuple[Path, ...], data_dir: Path | None, yes: bool) -> None:
    """Replace the whole state by that of a snapshot.

    Into whatever engine the configuration names: this is how one moves from SQLite to etcd. The file is checked first;
    one that is damaged, or newer than this program, changes nothing.
    """
    with plainly():
        from wharf.agent import saving
        from wharf.agent.log_access import describe

        settings = read(places, data_dir).settings
        facts = saving.inspect(file)
        _show(facts)
        place = describe(settings)
        if not yes:
            click.confirm(f"Replace the whole state, {place}, by this?", abort=True, err=True)
        index = asyncio.run(saving.restore_by_command(settings, file))
        click.echo(f"restored: {place}, now at index {index}")
        for need in facts.header.needs:
            click.echo(f"It needs {need}.")


def _show(facts: "SnapshotFacts") -> None:
    from datetime import UTC, datetime

    from wharf.model.durations import SECOND

    saved = datetime.fromtimestamp(facts.header.created_ns // SECOND, tz=UTC).isoformat().replace("+00:00", "Z")
    click.echo(f"  saved   {saved} by {facts.header.program}")
    click.echo(f"  index   {facts.trailer.standing.index}")
    click.echo(f"  size    {facts.size_bytes:,} bytes, sha256 {facts.sha256}")
    for table, count in sorted(facts.trailer.rows.items()):
        click.echo(f"  {count:>8,}  {table}")
