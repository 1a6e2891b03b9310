"""`wharf dev`: runs a whole cluster on this machine, for development."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import report_startup_errors
from wharf.cli.common.terminal import style
from wharf.cli.lazy_group import RenamedOption

if TYPE_CHECKING:
    from wharf.agent.startup import ReadyReport
    from wharf.config.configuration import CommandFlag, Configuration
    from wharf.config.tree import KeyPath, PlainValue, Scalar

DATA_FOLDER_NAME: Final = ".wharf"
DEFAULT_ADDRESS: Final = "http://127.0.0.1:4646"
"""Where commands look for a server by default."""


@click.command
@click.option("--port", type=int, help="HTTP port; 0 selects a free one.  [default: 4646]")
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Data folder.  [default: .wharf]")
@click.option(
    "--reset-data",
    "is_fresh",
    cls=RenamedOption,
    former_names=["--fresh"],
    is_flag=True,
    help="Delete the data of earlier runs first.",
)
@click.option("--fake-nodes", type=int, help="Simulated nodes besides the real one.  [default: 0]")
@click.option(
    "--config",
    "paths",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Configuration file or folder; may be repeated.",
)
@click.option("--log-level", help="trace, debug, info, warn or error.  [default: info]")
def dev(
    port: int | None,
    data_dir: Path | None,
    is_fresh: bool,
    fake_nodes: int | None,
    paths: tuple[Path, ...],
    log_level: str | None,
) -> None:
    """Run a whole cluster on this machine: server, scheduler and a node, on 127.0.0.1:4646, with its data in .wharf/.

    The node runs programs of this machine (driver raw_exec) as the current user. Ctrl-C stops everything, tasks too.
    """
    with report_startup_errors():
        from wharf.agent.errors import CommandError
        from wharf.agent.startup import AgentProcess, require_own_folder
        from wharf.config.configuration import CommandFlag

        flags = [
            CommandFlag(name, path, value)
            for name, path, value in (
                ("--port", ("ports", "http"), port),
                ("--data-dir", ("data_dir",), None if data_dir is None else str(data_dir.absolute())),
                ("--fake-nodes", ("client", "fake_nodes"), fake_nodes),
                ("--log-level", ("log_level",), log_level),
            )
            if value is not None
        ]

        def read_configuration() -> "Configuration":
            return read_dev_configuration(paths, flags)

        configuration = read_configuration()
        if is_fresh:
            require_own_folder(Path(configuration.settings.data_dir))
        agent = AgentProcess(
            configuration,
            reload_configuration=read_configuration,
            on_ready=print_welcome,
            is_fresh=is_fresh,
            should_introduce_own_node=True,
        )
        failure = agent.run()
        if failure:
            raise CommandError(failure)
        click.echo("stopped")


def read_dev_configuration(paths: tuple[Path, ...], flags: "list[CommandFlag]") -> "Configuration":
    """Return the configuration of `wharf dev`: files, environment and flags over its own defaults.

    Raises ConfigurationError.
    """
    from wharf.config.configuration import load_configuration

    first = load_configuration(
        paths, environment=os.environ, flags=flags, presets=build_presets(Path.cwd() / DATA_FOLDER_NAME)
    )
    # The log file is in the data folder, which is only known after the first reading.
    return load_configuration(
        paths, environment=os.environ, flags=flags, presets=build_presets(Path(first.settings.data_dir))
    )


def build_presets(folder: Path) -> "Mapping[KeyPath, Scalar | list[PlainValue]]":
    """Return the defaults of `wharf dev` that differ from those of `wharf agent`."""
    return {
        ("data_dir",): str(folder),
        ("server", "enabled"): True,
        ("client", "enabled"): True,
        ("client", "drivers", "raw_exec", "enabled"): True,
        ("client", "stop_on_shutdown"): True,
        # Disks of developers' machines are often nearly full, and recently ended allocations should stay readable.
        ("client", "gc_disk_usage_threshold"): 99.0,
        ("client", "gc_inode_usage_threshold"): 99.0,
        ("enable_debug",): True,
        ("telemetry", "prometheus_metrics"): True,
        ("log_file",): str(folder / "logs" / "wharf.log"),
        ("log_rotate_bytes",): 10_000_000,
        ("log_rotate_max_files",): 3,
    }


def print_welcome(report: "ReadyReport") -> None:
    """Print addresses and folders of the running cluster, and commands to try next."""
    from wharf import __version__
    from wharf.agent.startup_details import REGISTRATION_DETAIL, UNAVAILABLE_DRIVERS_DETAIL

    settings, folder = report.settings, report.data_folder
    node = report.details.get("node", {})
    rows = {
        "HTTP": report.address,
        **({"Pages": f"{report.address}/ui/"} if settings.ui.enabled else {}),
        "State": f"{settings.state.engine.value}, in {shorten_path(folder / 'state')}",
        "Log": shorten_path(Path(settings.log_file)) if settings.log_file else "here",
    }
    if settings.audit.enabled:
        rows["Audit"] = shorten_path(Path(settings.audit.file) if settings.audit.file else folder / "audit.log")
    if settings.acl.enabled:
        rows["Access"] = "control is on: every request needs a token"
    if node.get("drivers"):
        rows["Node"] = f"runs tasks on this machine, drivers {node['drivers']}"
    if REGISTRATION_DETAIL in node:
        rows["Waits for"] = "the registration of the node; if this takes long, the log shows why"
    if node.get(UNAVAILABLE_DRIVERS_DETAIL):
        rows["Not here"] = node[UNAVAILABLE_DRIVERS_DETAIL]
    if node.get("fake"):
        count = int(node["fake"])
        verb = "it reports" if count == 1 else "they report"
        rows["Fake nodes"] = f"{count}; {verb} tasks as running without starting them"
    width = max(map(len, rows))
    lines = [
        "",
        style_bold(f"Wharf {__version__} is running") + f", ready after {report.ready_after_s:.1f} s. Ctrl-C stops it.",
        "",
        *(f"  {style_dim(name.ljust(width))}  {text}" for name, text in rows.items()),
        "",
        "Try, in another terminal:",
        "",
        *(f"  {line}" for line in list_commands_to_try(report)),
        "",
    ]
    click.echo("\n".join(lines))
    sys.stdout.flush()


def list_commands_to_try(report: "ReadyReport") -> list[str]:
    """Return the shell commands that the welcome text suggests: environment variables to set, then a first job."""
    settings = report.settings
    wharf = find_own_command()
    lines: list[str] = []
    if report.address != DEFAULT_ADDRESS:
        lines.append(f"export WHARF_ADDR={report.address}")
    if settings.tls.http and settings.tls.ca_file:
        lines.append(f"export WHARF_CACERT={shlex.quote(shorten_path(Path(settings.tls.ca_file)))}")
    if settings.acl.enabled:
        lines += [f"{wharf} acl bootstrap   # prints the first token", "export WHARF_TOKEN=…   # its Secret"]
    return [
        *lines,
        f"{wharf} job init",
        f"{wharf} job run example.yaml",
        f"{wharf} status",
    ]


def find_own_command() -> str:
    """Return how to call this program from a shell: its name if it is in the PATH, else its file."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return f"{shorten_path(Path(sys.executable))} -m wharf"
    return "wharf" if shutil.which("wharf") else shorten_path(program.absolute())


def shorten_path(path: Path) -> str:
    """Return a path relative to the current folder if it is inside it, else unchanged."""
    current_folder = Path.cwd()
    return str(path.relative_to(current_folder)) if path.is_relative_to(current_folder) else str(path)


def style_bold(text: str) -> str:
    return style(text, bold=True) if sys.stdout.isatty() else text


def style_dim(text: str) -> str:
    return style(text, dim=True) if sys.stdout.isatty() else text
