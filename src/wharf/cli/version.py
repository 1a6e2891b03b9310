"""`wharf version`."""

import platform

import click


@click.command
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def version(as_json: bool) -> None:
    """Print the version."""
    from wharf import __version__

    facts = {"version": __version__, "python": platform.python_version(), "platform": platform.platform()}
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(facts)))
    else:
        click.echo(f"wharf {facts['version']} (Python {facts['python']}, {facts['platform']})")
