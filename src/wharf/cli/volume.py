"""`wharf volume`: folders of hosts that jobs may ask for."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.completing import complete_volumes
from wharf.cli.failing import Failed
from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Quiet, Speaking, Talk

if TYPE_CHECKING:
    from wharf.model.host_volume import HostVolume, HostVolumeStub

HERE: Final = "wharf.cli.volume"
COMMANDS: Final = {
    "status": Entry(HERE, "status", "List volumes, or show one."),
    "init": Entry(HERE, "init", "Write an example of a volume's file, to begin with."),
    "create": Entry(HERE, "create", "Have a node make a volume."),
    "register": Entry(HERE, "register", "Make a volume known that a node has already."),
    "delete": Entry(HERE, "delete", "Delete a volume that nothing uses."),
}
ALSO: Final = {"list": Entry(HERE, "status", "wharf volume status")}
WAIT_S: Final = 30.0
EXAMPLE: Final = """\
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
a_volume = click.argument("volume_id", metavar="VOLUME", shell_complete=complete_volumes)


@click.group(cls=LazyGroup, entries=COMMANDS, also=ALSO)
def volume() -> None:
    """Folders of hosts that jobs may ask for."""


@click.command(cls=Speaking)
@click.argument("volume_id", metavar="[VOLUME]", required=False, shell_complete=complete_volumes)
@click.option("--node", "node_id", default="", help="Only those on this node.")
@click.option("--node-pool", default="", help="Only those on nodes of this pool.")
@click.option("--filter", "expression", default="", help="Only those that match.")
def status(talk: Talk, volume_id: str | None, node_id: str, node_pool: str, expression: str) -> None:
    """List volumes, or show one.

    VOLUME is an id, the beginning of one, or a name.

    wharf volume status
    """
    if volume_id is None:
        from wharf.cli.finding import find_node

        on = find_node(talk, node_id).id if node_id else ""
        found = talk.client.host_volumes.list(node_id=on, node_pool=node_pool, filter=expression).value
        is_chosen = bool(node_id or node_pool or expression)
        talk.show(found, lambda: _volumes_told(talk, found, is_chosen=is_chosen))
        return
    meant = _find(talk, volume_id)
    one = talk.client.host_volumes.read(meant.id, namespace=meant.namespace).value
    talk.show(one, lambda: _volume_told(talk, one))


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=Path("volume.yaml"))
def init(file: Path) -> None:
    """Write an example of a volume's file, to begin with.

    FILE is volume.yaml if nothing else is said. A file that is there is not replaced.

    wharf volume init
    """
    try:
        with file.open("x", encoding="utf-8") as writing:
            writing.write(EXAMPLE.format(file=file))
    except FileExistsError:
        raise Failed(f"{file} is there already: name another file") from None
    except OSError as error:
        raise Failed(f"{file} cannot be written: {error.strerror}") from error
    click.echo(f"{file} is written; `wharf volume create {file}` has a node make the volume")


@click.command(cls=Speaking)
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--detach", is_flag=True, help="Return before the node says that it is ready.")
def create(talk: Talk, file: str, detach: bool) -> None:
    """Have a node make a volume.

    FILE is JSON or YAML, as `wharf volume init` writes it.

    wharf volume create volume.yaml
    """
    from wharf.cli.records import record_in
    from wharf.model.host_volume import HostVolume

    made = talk.client.host_volumes.create(record_in(file, HostVolume))
    _show_when_ready(talk, made.volume, detach=detach)


@click.command(cls=Speaking)
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--detach", is_flag=True, help="Return before the node says that it is ready.")
def register(talk: Talk, file: str, detach: bool) -> None:
    """Make a volume known that a node has already.

    FILE is as that of `create`, with NodeID and HostPath.

    wharf volume register volume.yaml
    """
    from wharf.cli.records import record_in
    from wharf.model.host_volume import HostVolume

    made = talk.client.host_volumes.register(record_in(file, HostVolume))
    if made.warnings:
        click.echo(f"wharf: {made.warnings}", err=True)
    _show_when_ready(talk, made.volume, detach=detach or bool(made.warnings))


@click.command(cls=Quiet)
@a_volume
def delete(talk: Talk, volume_id: str) -> None:
    """Delete a volume that nothing uses, with all that is in it, if a node made it.

    wharf volume delete data
    """
    one = _find(talk, volume_id)
    talk.client.host_volumes.delete(one.id, namespace=one.namespace)
    click.echo(f"volume {one.name} ({one.id}) is deleted")


def _show_when_ready(talk: Talk, one: "HostVolume", *, detach: bool) -> None:
    from wharf.model.host_volume import HostVolumeState

    began_s, index = talk.world.monotonic_s(), 0
    while not detach and one.state is HostVolumeState.PENDING:
        left_s = WAIT_S - (talk.world.monotonic_s() - began_s)
        if left_s <= 0:
            raise Failed(f"volume {one.id} is made, and its node has not said so within {WAIT_S:g} s: it is pending")
        answer = talk.client.host_volumes.read(one.id, namespace=one.namespace, index=index, wait_s=left_s)
        one, index = answer.value, answer.index
    talk.show(one, lambda: _volume_told(talk, one))


def _find(talk: Talk, given: str) -> "HostVolumeStub":
    """By id or, as people know them, by name. Raises `Failed`."""
    from wharf.cli.finding import the_one

    known = talk.client.host_volumes.list().value
    found = [one for one in known if one.id == given] or [one for one in known if one.name == given]
    return the_one(
        "volume",
        given,
        found or [one for one in known if one.id.startswith(given)],
        id_of=lambda one: one.id,
        about=lambda one: f"{one.name}  {one.state}",
        list_by="wharf volume status",
    )


def _volumes_told(talk: Talk, found: "Sequence[HostVolumeStub]", *, is_chosen: bool) -> str:
    from wharf.cli.tables import coloured, nothing, table

    if not found:
        return nothing("volumes", is_chosen=is_chosen)
    titles = ["ID", "Name", "Plugin", "Node", "Pool", "State"]
    rows = [
        [talk.short(one.id), one.name, one.plugin_id, talk.short(one.node_id), one.node_pool, coloured(one.state)]
        for one in found
    ]
    if talk.in_all_namespaces:
        titles.append("Namespace")
        rows = [[*row, one.namespace] for row, one in zip(rows, found, strict=True)]
    return table(titles, rows)


def _volume_told(talk: Talk, one: "HostVolume") -> str:
    from wharf.cli.tables import coloured, pairs

    modes = [f"{each.access_mode} as {each.attachment_mode}" for each in one.requested_capabilities or ()]
    return pairs(
        [
            ("ID", one.id),
            ("Name", one.name),
            ("Namespace", one.namespace),
            ("State", coloured(one.state)),
            ("Plugin", one.plugin_id or "none: it was there"),
            ("Node", one.node_id),
            ("Pool", one.node_pool),
            ("Path", one.host_path),
            ("Capacity", f"{one.capacity_bytes:,} bytes" if one.capacity_bytes else "not bounded"),
            ("For", ", ".join(modes)),
            ("Created", talk.when(one.create_time)),
        ]
    )
