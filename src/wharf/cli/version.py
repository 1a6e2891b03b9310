"""`wharf version`: prints the versions of Wharf, Python and the platform."""

import platform

import click

from wharf.cli.common.local_output import output_options, print_document


@click.command
@output_options
def version(as_json: bool) -> None:
    """Print the version."""
    from wharf import __version__

    versions = {"version": __version__, "python": platform.python_version(), "platform": platform.platform()}
    if as_json:
        print_document(versions)
    else:
        click.echo(f"wharf {versions['version']} (Python {versions['python']}, {versions['platform']})")
