"""The options `--config` and `--data-dir`, which select an agent of this machine, and reading its configuration."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from wharf.config.configuration import Configuration


def agent_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the parameters `paths` and `data_dir` to a command, for `read_agent_configuration`."""
    config = click.option(
        "--config",
        "paths",
        multiple=True,
        type=click.Path(path_type=Path),
        help="Configuration of the agent, a file or a folder.",
    )
    folder = click.option(
        "--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Data folder of the agent."
    )
    return config(folder(command))


def read_agent_configuration(paths: tuple[Path, ...], data_dir: Path | None) -> "Configuration":
    """Return the configuration of the selected agent, by default that of `wharf dev` in this folder.

    Raises ConfigurationError.
    """
    from wharf.cli.dev import read_dev_configuration
    from wharf.config.configuration import CommandFlag, load_configuration

    flags = [CommandFlag("--data-dir", ("data_dir",), str(data_dir.absolute()))] if data_dir is not None else []
    if paths:
        return load_configuration(paths, environment=os.environ, flags=flags)
    return read_dev_configuration((), flags)
