"""What goes wrong in the packages beneath becomes what a command shows: one line for each thing that is wrong."""

import contextlib
from collections.abc import Iterator

import click


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Inside, refusals of configuration and agent end the command with their sentences."""
    from wharf.agent.refusal import Refused
    from wharf.config.problems import ConfigurationRefused

    try:
        yield
    except (ConfigurationRefused, Refused) as refused:
        raise click.ClickException(str(refused)) from refused
