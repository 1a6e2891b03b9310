"""`wharf operator`: what those need who run the cluster. Here the archive for finding faults."""

from pathlib import Path
from typing import Final

import click

from wharf.cli.failing import plainly
from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.place import of_an_agent, read

COMMANDS: Final = {
    "api": Entry("wharf.cli.operating", "api", "Make any request, and print its reply."),
    "scheduler": Entry("wharf.cli.operating", "scheduler", "Show and change how the cluster schedules."),
    "rebalance": Entry(
        "wharf.cli.rebalancing", "rebalance", "Move allocations of services that would stand better on another node."
    ),
    "members": Entry("wharf.cli.operating", "members", "List the servers of the region, and which of them leads."),
    "keyring": Entry("wharf.cli.operating", "keyring", "Show and rotate the keys that variables are encrypted by."),
    "debug": Entry(
        "wharf.cli.operator", "debug", "Put what is needed to find a fault into one archive, without secrets."
    ),
    "snapshot": Entry("wharf.cli.snapshot", "snapshot", "Save, inspect and restore the whole state."),
}
ANSWER_WITHIN_S: Final = 10.0


@click.group(cls=LazyGroup, entries=COMMANDS)
def operator() -> None:
    """Requests, scheduling, servers, keys, snapshots, and an archive for finding faults."""


@click.command
@of_an_agent
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="[default: wharf-debug-<time>.tar.gz, here]"
)
def debug(places: tuple[Path, ...], data_dir: Path | None, output: Path | None) -> None:
    """Put what is needed to find a fault into one archive, without secrets.

    Sizes of the state, configuration, logs, and where every process stands. Works beside a running agent, and, with
    less to tell, when it does not run. Look it through before you send it to someone. Without --config and --data-dir
    it is about the `wharf dev` of this folder.
    """
    with plainly():
        from wharf.agent.debug import make_archive

        made = make_archive(read(places, data_dir).settings, output, answer_within_s=ANSWER_WITHIN_S)
        if not made.agent_is_running:
            click.echo(f"No agent runs on {made.data_folder}: the archive holds no stacks.")
        if made.silent:
            click.echo(f"These did not answer in time: {', '.join(made.silent)}.")
        click.echo(f"{made.path}  {made.files} files, {made.path.stat().st_size / 1_000:.0f} KB")
