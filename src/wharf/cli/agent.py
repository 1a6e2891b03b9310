"""`wharf agent`: runs a server, a node or both, from configuration files."""

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
    "paths",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    help="Configuration file (.toml, .json) or folder of such; may be repeated, later ones win.",
)
@click.option("--port", type=int, help="HTTP port; overrides the files.")
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Data folder; overrides the files.")
@click.option("--log-level", help="trace, debug, info, warn or error; overrides the files.")
def agent(paths: tuple[Path, ...], port: int | None, data_dir: Path | None, log_level: str | None) -> None:
    """Run a server, a node or both, from configuration files.

    SIGHUP reads the files again; the log says which changes were applied and which need a restart. SIGINT and SIGTERM
    shut the agent down gracefully. The documentation page Configuration lists all settings.
    """
    with report_startup_errors():
        from wharf.agent.errors import CommandError
        from wharf.agent.startup import AgentProcess, count_programs_of_tasks
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

        def read_configuration() -> "Configuration":
            return load_configuration(paths, environment=os.environ, flags=flags)

        configuration = read_configuration()
        agent_process = AgentProcess(configuration, reload_configuration=read_configuration, on_ready=print_ready)
        failure = agent_process.run()
        if failure:
            raise CommandError(failure)
        click.echo(describe_stop(count_programs_of_tasks(configuration.settings)))


def describe_stop(count: int) -> str:
    """Return that the agent has stopped, and that this number of programs runs on."""
    if not count:
        return "stopped"
    what = "1 program of a task keeps" if count == 1 else f"{count} programs of tasks keep"
    return (
        f"stopped; {what} running, and the agent takes over when it starts again. To end programs, stop their jobs while "
        "the agent runs, or set client.stop_on_shutdown = true"
    )


def print_ready(report: "ReadyReport") -> None:
    """Print one line with the roles and the address of the agent once it is ready."""
    from wharf import __version__
    from wharf.agent.startup_details import REGISTRATION_DETAIL

    roles = [
        name for name, role in (("server", report.settings.server), ("node", report.settings.client)) if role.enabled
    ]
    address = f" at {report.address}" if report.address else ""
    pending = ""
    if REGISTRATION_DETAIL in report.details.get("node", {}):
        roles.remove("node")
        pending = "; its node is not registered yet"
    click.echo(f"wharf {__version__}: {' and '.join(roles)} ready{address} after {report.ready_after_s:.1f} s{pending}")
