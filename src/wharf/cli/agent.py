"""`wharf agent`: a server, a node or both, from configuration."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wharf.cli.common.errors import report_startup_errors

if TYPE_CHECKING:
    from wharf.agent.startup import ReadyReport
    from wharf.config.configuration import Configuration


@click.command
@click.option(
    "--config",
    "places",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    help="A file (.toml, .json) or a folder of such. May be given several times; later wins.",
)
@click.option("--port", type=int, help="The port of HTTP, whatever the files say.")
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Where data is kept.")
@click.option("--log-level", help="trace, debug, info, warn or error.")
def agent(places: tuple[Path, ...], port: int | None, data_dir: Path | None, log_level: str | None) -> None:
    """Run a server, a node or both, from configuration.

    SIGHUP reads the files again: the log says what was applied and what needs a restart. SIGINT and SIGTERM end it in
    good order. docs/configuration.md tells all keys.
    """
    with report_startup_errors():
        from wharf.agent.errors import CommandError
        from wharf.agent.startup import AgentProcess
        from wharf.config.configuration import CommandFlag, load_configuration

        flags = [
            CommandFlag(name, path, value)
            for name, path, value in (
                ("--port", ("ports", "http"), port),
                ("--data-dir", ("data_dir",), None if data_dir is None else str(data_dir.absolute())),
                ("--log-level", ("log_level",), log_level),
            )
            if value is not None
        ]

        def read() -> "Configuration":
            return load_configuration(places, environment=os.environ, flags=flags)

        why = AgentProcess(read(), reload_configuration=read, on_ready=print_ready).run()
        if why:
            raise CommandError(why)
        click.echo("stopped")


def print_ready(running: "ReadyReport") -> None:
    from wharf import __version__

    roles = [
        name for name, part in (("server", running.settings.server), ("node", running.settings.client)) if part.enabled
    ]
    at = f" at {running.address}" if running.address else ""
    click.echo(f"wharf {__version__}: {' and '.join(roles)} ready{at} after {running.ready_after_s:.1f} s")
