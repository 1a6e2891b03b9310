"""`wharf config`: whether configuration is right, and what it amounts to."""

import os
from pathlib import Path

import click

from wharf.cli.common.errors import report_startup_errors
from wharf.cli.lazy_group import CommandEntry, LazyGroup

KEY_WIDTH = 44
VALUE_WIDTH = 28

COMMANDS = {
    "check": CommandEntry(
        "wharf.cli.config", "check", "Say what is wrong with files of configuration, and start nothing."
    ),
    "show": CommandEntry(
        "wharf.cli.config", "show", "Print every setting and where its value came from, without secrets."
    ),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def config() -> None:
    """Check and show configuration."""


@click.command
@click.argument("places", nargs=-1, type=click.Path(path_type=Path))
@click.option("--config", "more", multiple=True, type=click.Path(path_type=Path), help="The same as PLACES.")
def check(places: tuple[Path, ...], more: tuple[Path, ...]) -> None:
    """Say what is wrong with files of configuration, and start nothing.

    PLACES are files and folders, as after `wharf agent --config`. Those after --config come last. The environment counts too. Exit code 0 when all is
    right, 1 when something is not.
    """
    with report_startup_errors():
        from wharf.config.configuration import load_configuration
        from wharf.config.ineffective import list_warnings

        if not places and not more:
            raise click.UsageError("name a file or folder of configuration: `wharf config check PLACE`")
        configuration = load_configuration((*places, *more), environment=os.environ)
        for warning in list_warnings(configuration):
            click.echo(f"note: {warning}", err=True)
        count = len(configuration.files)
        click.echo(f"{count} file{'s are' if count != 1 else ' is'} right")


@click.command
@click.option(
    "--config",
    "places",
    multiple=True,
    type=click.Path(path_type=Path),
    help="As with `wharf agent`; none: `wharf dev`.",
)
@click.option("--json", "as_json", is_flag=True, help="For programs: a list of objects with key, value and origin.")
@click.option("--changed", is_flag=True, help="Only what is not the default.")
def show(places: tuple[Path, ...], as_json: bool, changed: bool) -> None:
    """Print every setting and where its value came from, without secrets.

    Without --config, the settings of `wharf dev` in this folder.
    """
    with report_startup_errors():
        import msgspec

        from wharf.cli.dev import read_dev_configuration
        from wharf.config.configuration import load_configuration
        from wharf.config.display import list_values
        from wharf.config.tree import OriginKind

        configuration = load_configuration(places, environment=os.environ) if places else read_dev_configuration((), [])
        values = [
            value for value in list_values(configuration) if not changed or value.origin != OriginKind.DEFAULT.value
        ]
        if as_json:
            click.echo(msgspec.json.format(msgspec.json.encode(values)))
            return
        texts = [(value.key, msgspec.json.encode(value.value).decode(), value.origin) for value in values]
        for key, text, origin in texts:
            # A long key takes from the room of its value, so that one long key does not widen every line.
            width = max(KEY_WIDTH + VALUE_WIDTH - max(len(key), KEY_WIDTH), 0)
            click.echo(f"{key:<{KEY_WIDTH}}  {text:<{width}}  {click.style(origin, dim=True)}")
