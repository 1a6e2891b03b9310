"""`wharf config`: checks configuration files, and shows the effective settings with their origins."""

import os
from pathlib import Path

import click

from wharf.cli.common.errors import report_startup_errors
from wharf.cli.common.terminal import style
from wharf.cli.lazy_group import CommandEntry, LazyGroup, RenamedOption

KEY_WIDTH = 44
VALUE_WIDTH = 28

COMMANDS = {
    "check": CommandEntry("wharf.cli.config", "check", "Check configuration files without starting anything."),
    "show": CommandEntry(
        "wharf.cli.config", "show", "Print every setting and the origin of its value, without secrets."
    ),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def config() -> None:
    """Check and show configuration."""


@click.command
@click.argument("paths", nargs=-1, metavar="[PATHS]...", type=click.Path(path_type=Path))
@click.option(
    "--config", "more_paths", multiple=True, type=click.Path(path_type=Path), help="The same as PATHS; may be repeated."
)
def check(paths: tuple[Path, ...], more_paths: tuple[Path, ...]) -> None:
    """Check configuration files without starting anything.

    PATHS are files and folders, as for `wharf agent --config`. Those of --config are read last. Variables of the
    environment are included. The exit code is 0 if the configuration is valid, else 1.
    """
    with report_startup_errors():
        from wharf.agent.data_folder import check_folder_access
        from wharf.agent.startup import check_existing_keyring_file
        from wharf.agent.tls.contexts import check_tls_files
        from wharf.config.configuration import load_configuration
        from wharf.config.ineffective import list_warnings
        from wharf.world import RealWorld

        if not paths and not more_paths:
            raise click.UsageError("missing configuration: `wharf config check PATH`")
        configuration = load_configuration((*paths, *more_paths), environment=os.environ)
        if configuration.settings.limits.enabled:
            from wharf.agent.http.limits import check_limits_file

            check_limits_file(configuration.settings)
        check_tls_files(configuration.settings.tls, now_ns=RealWorld().now_ns())
        check_folder_access(configuration.settings)
        if configuration.settings.server.enabled:
            check_existing_keyring_file(configuration.settings)
        for warning in list_warnings(configuration):
            click.echo(f"note: {warning}", err=True)
        count = len(configuration.files)
        click.echo(f"{count} file{'s are' if count != 1 else ' is'} valid")


@click.command
@click.option(
    "--config",
    "paths",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Configuration file or folder; may be repeated.  [default: the settings of `wharf dev`]",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects with key, value and origin.")
@click.option(
    "--only-changed",
    "is_only_changed",
    cls=RenamedOption,
    former_names=["--changed"],
    is_flag=True,
    help="Only settings whose value is not the default.",
)
def show(paths: tuple[Path, ...], as_json: bool, is_only_changed: bool) -> None:
    """Print every setting and the origin of its value, without secrets.

    Without --config, the settings of `wharf dev` in this folder.
    """
    with report_startup_errors():
        import msgspec

        from wharf.cli.dev import read_dev_configuration
        from wharf.config.configuration import load_configuration
        from wharf.config.display import list_values
        from wharf.config.tree import OriginKind

        configuration = load_configuration(paths, environment=os.environ) if paths else read_dev_configuration((), [])
        values = [
            value
            for value in list_values(configuration)
            if not is_only_changed or value.origin != OriginKind.DEFAULT.value
        ]
        if as_json:
            click.echo(msgspec.json.format(msgspec.json.encode(values)))
            return
        texts = [(value.key, msgspec.json.encode(value.value).decode(), value.origin) for value in values]
        for key, text, origin in texts:
            # A long key takes width from its value column, so that it does not move the origins of all other lines.
            width = max(KEY_WIDTH + VALUE_WIDTH - max(len(key), KEY_WIDTH), 0)
            click.echo(f"{key:<{KEY_WIDTH}}  {text:<{width}}  {style(origin, dim=True)}")
