"""Which agent a command is about: the options that tell, and the configuration that they lead to."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from wharf.config.configuration import Configuration


def agent_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command `places` and `data_dir`: what `read` takes."""
    config = click.option(
        "--config",
        "places",
        multiple=True,
        type=click.Path(path_type=Path),
        help="The agent's configuration, a file or a folder.",
    )
    folder = click.option(
        "--data-dir", type=click.Path(path_type=Path, file_okay=False), help="The agent's data folder."
    )
    return config(folder(command))


def read_agent_configuration(paths: tuple[Path, ...], data_dir: Path | None) -> "Configuration":
    """The configuration that tells where the agent's data is. Raises ConfigurationRefused."""
    from wharf.cli.dev import read_dev_configuration
    from wharf.config.configuration import CommandFlag, load_configuration

    flags = [CommandFlag("--data-dir", ("data_dir",), str(data_dir.absolute()))] if data_dir is not None else []
    if paths:
        return load_configuration(paths, environment=os.environ, flags=flags)
    return read_dev_configuration((), flags)
