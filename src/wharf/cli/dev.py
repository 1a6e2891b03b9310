"""`wharf dev`: a whole cluster on this machine, for trying and developing."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import report_startup_errors

if TYPE_CHECKING:
    from wharf.agent.startup import ReadyReport
    from wharf.config.configuration import CommandFlag, Configuration
    from wharf.config.tree import KeyPath, PlainValue, Scalar

DATA_FOLDER_NAME: Final = ".wharf"
DEFAULT_ADDRESS: Final = "http://127.0.0.1:4646"
"""Where commands look for a server that nobody named."""


@click.command
@click.option("--port", type=int, help="The port of HTTP; 0 takes a free one.  [default: 4646]")
@click.option(
    "--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Where data is kept.  [default: .wharf]"
)
@click.option("--fresh", is_flag=True, help="Remove what earlier runs left in the data folder.")
@click.option("--fake-nodes", type=int, help="How many fake nodes run beside the real one.  [default: 0]")
@click.option(
    "--config", "places", multiple=True, type=click.Path(path_type=Path), help="A file or folder of configuration."
)
@click.option("--log-level", help="trace, debug, info, warn or error.  [default: info]")
def dev(
    port: int | None,
    data_dir: Path | None,
    fresh: bool,
    fake_nodes: int | None,
    places: tuple[Path, ...],
    log_level: str | None,
) -> None:
    """Run a whole cluster here: server, scheduler and a node, on 127.0.0.1:4646, with its data in .wharf/.

    The node runs programs of this machine (driver raw_exec) as who you are. Ctrl-C stops all of it, tasks too.
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

        def read() -> "Configuration":
            return read_dev_configuration(places, flags)

        configuration = read()
        if fresh:
            require_own_folder(Path(configuration.settings.data_dir))
        agent = AgentProcess(
            configuration,
            reload_configuration=read,
            on_ready=print_welcome,
            is_fresh=fresh,
            should_introduce_own_node=True,
        )
        why = agent.run()
        if why:
            raise CommandError(why)
        click.echo("stopped")


def read_dev_configuration(paths: tuple[Path, ...], flags: "list[CommandFlag]") -> "Configuration":
    """Raises ConfigurationRefused."""
    from wharf.config.configuration import load_configuration

    first = load_configuration(
        paths, environment=os.environ, flags=flags, presets=build_presets(Path.cwd() / DATA_FOLDER_NAME)
    )
    # The log lies in the data folder, wherever that was told to be.
    return load_configuration(
        paths, environment=os.environ, flags=flags, presets=build_presets(Path(first.settings.data_dir))
    )


def build_presets(folder: Path) -> "Mapping[KeyPath, Scalar | list[PlainValue]]":
    """The defaults of `wharf dev` where they differ from those of `wharf agent`."""
    return {
        ("data_dir",): str(folder),
        ("server", "enabled"): True,
        ("client", "enabled"): True,
        ("client", "drivers", "raw_exec", "enabled"): True,
        ("client", "stop_on_shutdown"): True,
        # The disk of a person's machine is often nearly full, and what just ended is what they want to look at.
        ("client", "gc_disk_usage_threshold"): 99.0,
        ("client", "gc_inode_usage_threshold"): 99.0,
        ("enable_debug",): True,
        ("telemetry", "prometheus_metrics"): True,
        ("log_file",): str(folder / "logs" / "wharf.log"),
        ("log_rotate_bytes",): 10_000_000,
        ("log_rotate_max_files",): 3,
    }


def print_welcome(running: "ReadyReport") -> None:
    """What runs where, and what to try next."""
    from wharf import __version__

    settings, folder = running.settings, running.data_folder
    node = running.details.get("node", {})
    rows = {
        "HTTP": running.address,
        "State": f"{settings.state.engine.value}, in {shorten_path(folder / 'state')}",
        "Log": shorten_path(Path(settings.log_file)) if settings.log_file else "here",
    }
    if settings.audit.enabled:
        rows["Audit"] = shorten_path(Path(settings.audit.file) if settings.audit.file else folder / "audit.log")
    if settings.acl.enabled:
        rows["Access"] = "control is on: nobody may do anything without a token"
    if node.get("drivers"):
        rows["Node"] = f"runs tasks here, by {node['drivers']}"
    if node.get("fake"):
        count = int(node["fake"])
        said = "1 that takes" if count == 1 else f"{count} that take"
        rows["Fake nodes"] = (
            f"{said} work and report{'s' if count == 1 else ''} it as running, but start{'s' if count == 1 else ''} nothing"
        )
    width = max(map(len, rows))
    lines = [
        "",
        style_bold(f"Wharf {__version__} is running")
        + f", ready after {running.ready_after_s:.1f} s. Ctrl-C stops all of it.",
        "",
        *(f"  {style_dim(name.ljust(width))}  {text}" for name, text in rows.items()),
        "",
        "Try, in another terminal:",
        "",
        *(f"  {line}" for line in list_commands_to_try(running)),
        "",
    ]
    click.echo("\n".join(lines))
    sys.stdout.flush()


def list_commands_to_try(running: "ReadyReport") -> list[str]:
    settings, folder = running.settings, running.data_folder
    wharf = find_own_command()
    lines: list[str] = []
    if running.address != DEFAULT_ADDRESS:
        lines.append(f"export WHARF_ADDR={running.address}")
    if settings.tls.http and settings.tls.ca_file:
        lines.append(f"export WHARF_CACERT={shlex.quote(shorten_path(Path(settings.tls.ca_file)))}")
    if settings.acl.enabled:
        lines += [f"{wharf} acl bootstrap   # once: it prints the first token", "export WHARF_TOKEN=…   # its Secret"]
    where = "" if folder == Path.cwd() / DATA_FOLDER_NAME else f" --data-dir {shlex.quote(shorten_path(folder))}"
    return [
        *lines,
        f"{wharf} job init",
        f"{wharf} job run example.yaml",
        f"{wharf} status",
        f"{wharf} operator debug{where}",
    ]


def find_own_command() -> str:
    """How this command is called from here: by its name where the shell finds it, else by its path."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shorten_path(Path(sys.executable))} -m wharf"
    return "wharf" if shutil.which("wharf") else shorten_path(called.absolute())


def shorten_path(path: Path) -> str:
    """Relative where that is shorter to read."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def style_bold(text: str) -> str:
    return click.style(text, bold=True) if sys.stdout.isatty() else text


def style_dim(text: str) -> str:
    return click.style(text, dim=True) if sys.stdout.isatty() else text
