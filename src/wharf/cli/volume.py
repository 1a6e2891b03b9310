"""`wharf volume`: folders of hosts that jobs may ask for."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.completion import complete_volumes
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from wharf.contract.model.volumes import HostVolume, HostVolumeStub

MODULE: Final = "wharf.cli.volume"
COMMANDS: Final = {
    "status": CommandEntry(MODULE, "status", "List volumes, or show one."),
    "init": CommandEntry(MODULE, "init", "Write an example of a volume's file, to begin with."),
    "create": CommandEntry(MODULE, "create", "Have a node make a volume."),
    "register": CommandEntry(MODULE, "register", "Make a volume known that a node has already."),
    "delete": CommandEntry(MODULE, "delete", "Delete a volume that nothing uses."),
}
ALIASES: Final = {"list": CommandEntry(MODULE, "status", "wharf volume status")}
READY_TIMEOUT_S: Final = 30.0
EXAMPLE_VOLUME: Final = """\
# A volume of a host: a folder of one node. `wharf volume create {file}` has a node make it.
# A job asks for it by its name, under Volumes of a group: {{data: {{Type: host, Source: data}}}}; and a task says where it
# finds it, under VolumeMounts: [{{Volume: data, Destination: /data}}].
Name: data

# What makes it: mkdir is there on every node; `wharf node status NODE` names all plugins of a node.
PluginID: mkdir

# Where: any node of this pool, or the one with this NodeID.
NodePool: default

# How it may be used. AccessMode: single-node-writer, single-node-single-writer, single-node-multi-writer or
# single-node-reader-only.
RequestedCapabilities:
  - AccessMode: single-node-writer
    AttachmentMode: file-system

# What the plugin is told; mkdir knows mode, uid and gid.
Parameters:
  mode: "0755"
"""
volume_argument = click.argument("volume_id", metavar="VOLUME", shell_complete=complete_volumes)


@click.group(cls=LazyGroup, entries=COMMANDS, also=ALIASES)
def volume() -> None:
    """Folders of hosts that jobs may ask for."""


@click.command(cls=ServerCommand)
@click.argument("volume_id", metavar="[VOLUME]", required=False, shell_complete=complete_volumes)
@click.option("--node", "node_id", default="", help="Only those on this node.")
@click.option("--node-pool", default="", help="Only those on nodes of this pool.")
@click.option("--filter", "expression", default="", help="Only those that match.")
def status(session: Session, volume_id: str | None, node_id: str, node_pool: str, expression: str) -> None:
    """List volumes, or show one.

    VOLUME is an id, the beginning of one, or a name.

    wharf volume status
    """
    if volume_id is None:
        from wharf.cli.common.lookup import find_node

        on = find_node(session, node_id).id if node_id else ""
        found = session.client.host_volumes.list(node_id=on, node_pool=node_pool, filter=expression).value
        is_chosen = bool(node_id or node_pool or expression)
        session.print_result(found, lambda: _volumes_told(session, found, is_chosen=is_chosen))
        return
    meant = _find(session, volume_id)
    one = session.client.host_volumes.read(meant.id, namespace=meant.namespace).value
    session.print_result(one, lambda: _volume_told(session, one))


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=Path("volume.yaml"))
def init(file: Path) -> None:
    """Write an example of a volume's file, to begin with.

    FILE is volume.yaml if nothing else is said. A file that is there is not replaced.

    wharf volume init
    """
    try:
        with file.open("x", encoding="utf-8") as writing:
            writing.write(EXAMPLE_VOLUME.format(file=file))
    except FileExistsError:
        raise CliError(f"{file} is there already: name another file") from None
    except OSError as error:
        raise CliError(f"{file} cannot be written: {error.strerror}") from error
    click.echo(f"{file} is written; `wharf volume create {file}` has a node make the volume")


@click.command(cls=ServerCommand)
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--detach", is_flag=True, help="Return before the node says that it is ready.")
def create(session: Session, file: str, detach: bool) -> None:
    """Have a node make a volume.

    FILE is JSON or YAML, as `wharf volume init` writes it.

    wharf volume create volume.yaml
    """
    from wharf.cli.common.documents import read_record
    from wharf.contract.model.volumes import HostVolume

    made = session.client.host_volumes.create(read_record(file, HostVolume))
    _show_when_ready(session, made.volume, detach=detach)


@click.command(cls=ServerCommand)
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--detach", is_flag=True, help="Return before the node says that it is ready.")
def register(session: Session, file: str, detach: bool) -> None:
    """Make a volume known that a node has already.

    FILE is as that of `create`, with NodeID and HostPath.

    wharf volume register volume.yaml
    """
    from wharf.cli.common.documents import read_record
    from wharf.contract.model.volumes import HostVolume

    made = session.client.host_volumes.register(read_record(file, HostVolume))
    if made.warnings:
        click.echo(f"wharf: {made.warnings}", err=True)
    _show_when_ready(session, made.volume, detach=detach or bool(made.warnings))


@click.command(cls=QuietServerCommand)
@volume_argument
def delete(session: Session, volume_id: str) -> None:
    """Delete a volume that nothing uses, with all that is in it, if a node made it.

    wharf volume delete data
    """
    one = _find(session, volume_id)
    session.client.host_volumes.delete(one.id, namespace=one.namespace)
    click.echo(f"volume {one.name} ({one.id}) is deleted")


def _show_when_ready(session: Session, one: "HostVolume", *, detach: bool) -> None:
    from wharf.contract.model.volumes import HostVolumeState

    began_s, index = session.world.monotonic_s(), 0
    while not detach and one.state is HostVolumeState.PENDING:
        left_s = READY_TIMEOUT_S - (session.world.monotonic_s() - began_s)
        if left_s <= 0:
            raise CliError(
                f"volume {one.id} is made, and its node has not said so within {READY_TIMEOUT_S:g} s: it is pending"
            )
        answer = session.client.host_volumes.read(one.id, namespace=one.namespace, index=index, wait_s=left_s)
        one, index = answer.value, answer.index
    session.print_result(one, lambda: _volume_told(session, one))


def _find(session: Session, given: str) -> "HostVolumeStub":
    """By id or, as people know them, by name. Raises `Failed`."""
    from wharf.cli.common.lookup import require_single

    known = session.client.host_volumes.list().value
    found = [one for one in known if one.id == given] or [one for one in known if one.name == given]
    return require_single(
        "volume",
        given,
        found or [one for one in known if one.id.startswith(given)],
        get_id=lambda one: one.id,
        describe=lambda one: f"{one.name}  {one.state}",
        list_command="wharf volume status",
    )


def _volumes_told(session: Session, found: "Sequence[HostVolumeStub]", *, is_chosen: bool) -> str:
    from wharf.cli.common.rendering import colour_state, render_no_rows, render_table

    if not found:
        return render_no_rows("volumes", is_filtered=is_chosen)
    titles = ["ID", "Name", "Plugin", "Node", "Pool", "State"]
    rows = [
        [
            session.shorten_id(one.id),
            one.name,
            one.plugin_id,
            session.shorten_id(one.node_id),
            one.node_pool,
            colour_state(one.state),
        ]
        for one in found
    ]
    if session.is_all_namespaces:
        titles.append("Namespace")
        rows = [[*row, one.namespace] for row, one in zip(rows, found, strict=True)]
    return render_table(titles, rows)


def _volume_told(session: Session, one: "HostVolume") -> str:
    from wharf.cli.common.rendering import colour_state, render_pairs

    modes = [f"{each.access_mode} as {each.attachment_mode}" for each in one.requested_capabilities or ()]
    return render_pairs(
        [
            ("ID", one.id),
            ("Name", one.name),
            ("Namespace", one.namespace),
            ("State", colour_state(one.state)),
            ("Plugin", one.plugin_id or "none: it was there"),
            ("Node", one.node_id),
            ("Pool", one.node_pool),
            ("Path", one.host_path),
            ("Capacity", f"{one.capacity_bytes:,} bytes" if one.capacity_bytes else "not bounded"),
            ("For", ", ".join(modes)),
            ("Created", session.format_time(one.create_time)),
        ]
    )
