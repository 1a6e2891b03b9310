"""`wharf config`: writes and checks configuration files, and shows the effective settings with their origins."""

import os
from pathlib import Path

import click

from wharf.cli.common.errors import CliError, report_startup_errors
from wharf.cli.common.local_output import output_options, print_document
from wharf.cli.common.sentences import print_notice, print_sentence
from wharf.cli.common.terminal import style
from wharf.cli.lazy_group import CommandEntry, LazyGroup, RenamedOption

KEY_WIDTH = 44
VALUE_WIDTH = 28

COMMANDS = {
    "init": CommandEntry("wharf.cli.config", "init", "Write a configuration file with a comment about each setting."),
    "check": CommandEntry("wharf.cli.config", "check", "Check configuration files without starting anything."),
    "show": CommandEntry(
        "wharf.cli.config", "show", "Print every setting and the origin of its value, without secrets."
    ),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def config() -> None:
    """Write, check and show configuration."""


@click.command
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), default="wharf.toml")
@click.option("--server", "roles", flag_value="server", multiple=True, help="For a server, which runs no tasks.")
@click.option("--node", "roles", flag_value="node", multiple=True, help="For a node, which needs a server elsewhere.")
@click.option("--both", "roles", flag_value="both", multiple=True, help="For a server and a node in one (the default).")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def init(file: Path, roles: tuple[str, ...], force: bool) -> None:
    """Write a configuration file with a comment about each setting.

    FILE is wharf.toml by default; `-` prints it. Settings that you may want to change later are comments. Only the
    owner can read the file, because it may contain secrets.

    wharf config init --server /etc/wharf/wharf.toml
    """
    from wharf.config.starter_file import AgentRole, render_starter_file

    if len(set(roles)) > 1:
        raise click.UsageError(f"{' and '.join(f'--{role}' for role in roles)} exclude each other: use one of them")
    text = render_starter_file(AgentRole(roles[0] if roles else "both"))
    if str(file) == "-":
        click.echo(text, nl=False)
        return
    _write_file(file, text, can_replace=force)
    print_sentence(f"wrote {file}; `wharf config check {file}` checks it")


def _write_file(file: Path, text: str, *, can_replace: bool) -> None:
    """Write a new file, or replace an existing one if `can_replace` is set. Raises `CliError`."""
    from wharf.world.durable_file import create_file_once, replace_file

    if file.suffix != ".toml":
        raise CliError(f"{file}: the file is TOML, so its name must end with .toml")
    try:
        if can_replace:
            replace_file(file, text.encode())
        elif not create_file_once(file, text.encode()):
            raise CliError(f"{file} already exists: choose another file, or replace it with --force")
    except OSError as error:
        raise CliError(f"cannot write {file}: {error.strerror}") from error


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
        from wharf.agent.tls.validity import list_configured_problems
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
        certificate_problems = list_configured_problems(configuration.settings, now_ns=RealWorld().now_ns())
        for warning in (*list_warnings(configuration), *certificate_problems):
            print_notice(f"note: {warning}")
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
@output_options
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
            print_document(values)
            return
        texts = [(value.key, msgspec.json.encode(value.value).decode(), value.origin) for value in values]
        for key, text, origin in texts:
            # A long key takes width from its value column, so that it does not move the origins of all other lines.
            width = max(KEY_WIDTH + VALUE_WIDTH - max(len(key), KEY_WIDTH), 0)
            click.echo(f"{key:<{KEY_WIDTH}}  {text:<{width}}  {style(origin, dim=True)}")
