"""`wharf version`: prints the versions of Wharf, Python and the platform."""

import platform

import click


@click.command
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def version(as_json: bool) -> None:
    """Print the version."""
    from wharf import __version__

    versions = {"version": __version__, "python": platform.python_version(), "platform": platform.platform()}
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(versions)))
    else:
        click.echo(f"wharf {versions['version']} (Python {versions['python']}, {versions['platform']})")
