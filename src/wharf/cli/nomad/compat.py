"""`wharf compat`."""

import click

from wharf.cli.lazy_group import LazyGroup


@click.group(cls=LazyGroup, entries={})
def compat() -> None:
    """Let scripts that call `nomad` call Wharf."""
