"""`wharf volume`: creates, registers, shows and deletes host volumes, folders of nodes that jobs can mount."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.sentences import print_notice, print_sentence
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.completion import complete_volumes
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from wharf.contract.model.volumes import HostVolume, HostVolumeStub

MODULE: Final = "wharf.cli.volume"
COMMANDS: Final = {
    "status": CommandEntry(MODULE, "status", "List volumes, or show one."),
    "init": CommandEntry(MODULE, "init", "Write an example volume file."),
    "create": CommandEntry(MODULE, "create", "Create a volume on a node."),
    "register": CommandEntry(MODULE, "register", "Register a folder that already exists on a node."),
    "delete": CommandEntry(MODULE, "delete", "Delete an unused volume."),
}
ALIASES: Final = {"list": CommandEntry(MODULE, "status", "wharf volume status")}
READY_TIMEOUT_S: Final = 30.0
"""How long the node may take to create the volume."""
EXAMPLE_VOLUME: Final = """\
# A host volume: a folder of one node. `wharf volume create {file}` creates it.
# A job requests it by its name, under Volumes of a group: {{data: {{Type: host, Source: data}}}}; a task mounts it
# under VolumeMounts: [{{Volume: data, Destination: /data}}].
Name: data

# The plugin that creates it. Every node has mkdir; `wharf node status NODE` lists the plugins of a node.
PluginID: mkdir

# Where: on any node of this pool, or on the node with this NodeID.
NodePool: default

# How it may be used. AccessMode: single-node-writer, single-node-single-writer, single-node-multi-writer or
# single-node-reader-only.
RequestedCapabilities:
  - AccessMode: single-node-writer
    AttachmentMode: file-system

# Parameters of the plugin; mkdir accepts mode, uid and gid.
Parameters:
  mode: "0755"
"""
volume_argument = click.argument("volume_id", metavar="VOLUME", shell_complete=complete_volumes)


@click.group(cls=LazyGroup, entries=COMMANDS, aliases=ALIASES)
def volume() -> None:
    """Create and show host volumes."""


@click.command(cls=ServerCommand)
@click.argument("volume_id", metavar="[VOLUME]", required=False, shell_complete=complete_volumes)
@click.option("--node", "node_id", default="", help="Only volumes on this node.")
@click.option("--node-pool", default="", help="Only volumes on nodes of this pool.")
@click.option("--filter", "expression", default="", help="Only volumes that match.")
def status(session: Session, volume_id: str | None, node_id: str, node_pool: str, expression: str) -> None:
    """List volumes, or show one.

    VOLUME is an id, a unique prefix of an id, or a name.

    wharf volume status
    """
    if volume_id is None:
        from wharf.cli.common.lookup import find_node

        full_node_id = find_node(session, node_id).id if node_id else ""
        if expression:
            # Servers refuse a filter together with other parameters that narrow the list.
            terms = [f"({expression})"]
            terms += [f'NodeID == "{full_node_id}"'] if full_node_id else []
            terms += [f'NodePool == "{node_pool}"'] if node_pool else []
            volumes = session.client.host_volumes.list(filter=" and ".join(terms)).value
        else:
            volumes = session.client.host_volumes.list(node_id=full_node_id, node_pool=node_pool).value
        is_filtered = bool(node_id or node_pool or expression)
        session.print_result(volumes, lambda: _render_volumes(session, volumes, is_filtered=is_filtered))
        return
    found = _find_volume(session, volume_id)
    volume = session.client.host_volumes.read(found.id, namespace=found.namespace).value
    session.print_result(volume, lambda: _render_volume(session, volume))


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=Path("volume.yaml"))
def init(file: Path) -> None:
    """Write an example volume file.

    FILE is volume.yaml by default. An existing file is not overwritten.

    wharf volume init
    """
    try:
        with file.open("x", encoding="utf-8") as target:
            target.write(EXAMPLE_VOLUME.format(file=file))
    except FileExistsError:
        raise CliError(f"{file} already exists: choose another file name") from None
    except OSError as error:
        raise CliError(f"cannot write {file}: {error.strerror}") from error
    print_sentence(f"wrote {file}; `wharf volume create {file}` creates the volume")


@click.command(cls=ServerCommand)
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--detach", is_flag=True, help="Return before the node has created the volume.")
def create(session: Session, file: str, detach: bool) -> None:
    """Create a volume on a node.

    FILE is JSON or YAML, such as `wharf volume init` writes.

    wharf volume create volume.yaml
    """
    from wharf.cli.common.documents import read_record
    from wharf.contract.model.volumes import HostVolume

    response = session.client.host_volumes.create(read_record(file, HostVolume))
    _print_when_ready(session, response.volume, should_detach=detach)


@click.command(cls=ServerCommand)
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--detach", is_flag=True, help="Return before the node has confirmed the volume.")
def register(session: Session, file: str, detach: bool) -> None:
    """Register a folder that already exists on a node.

    FILE is like that of `create`, with NodeID and HostPath.

    wharf volume register volume.yaml
    """
    from wharf.cli.common.documents import read_record
    from wharf.contract.model.volumes import HostVolume

    response = session.client.host_volumes.register(read_record(file, HostVolume))
    if response.warnings:
        print_notice(f"wharf: {response.warnings}")
    _print_when_ready(session, response.volume, should_detach=detach or bool(response.warnings))


@click.command(cls=ServerCommand)
@volume_argument
def delete(session: Session, volume_id: str) -> None:
    """Delete an unused volume. A folder that a plugin created is deleted with its content.

    wharf volume delete data
    """
    volume = _find_volume(session, volume_id)
    session.client.host_volumes.delete(volume.id, namespace=volume.namespace)
    session.print_change(
        f"deleted volume {volume.name} ({volume.id})", ID=volume.id, Name=volume.name, Namespace=volume.namespace
    )


def _print_when_ready(session: Session, volume: "HostVolume", *, should_detach: bool) -> None:
    """Print a volume, unless detached once it is no longer pending. Raises CliError after READY_TIMEOUT_S."""
    from wharf.contract.model.volumes import HostVolumeState

    start_s, index = session.world.monotonic_s(), 0
    while not should_detach and volume.state is HostVolumeState.PENDING:
        remaining_s = READY_TIMEOUT_S - (session.world.monotonic_s() - start_s)
        if remaining_s <= 0:
            raise CliError(
                f"volume {volume.id} is still pending: its node has not confirmed it within {READY_TIMEOUT_S:g} s"
            )
        response = session.client.host_volumes.read(
            volume.id, namespace=volume.namespace, index=index, wait_s=remaining_s
        )
        volume, index = response.value, response.index
    session.print_result(volume, lambda: _render_volume(session, volume))


def _find_volume(session: Session, query: str) -> "HostVolumeStub":
    """Find a volume by id, name or unique id prefix. Raises CliError."""
    from wharf.cli.common.lookup import require_single

    known = session.client.host_volumes.list().value
    by_id = [volume for volume in known if volume.id == query]
    found = by_id or [volume for volume in known if volume.name == query]
    return require_single(
        "volume",
        query,
        found or [volume for volume in known if volume.id.startswith(query)],
        get_id=lambda volume: volume.id,
        describe=lambda volume: f"{volume.name}  {volume.state}",
        list_command="wharf volume status",
    )


def _render_volumes(session: Session, volumes: "Sequence[HostVolumeStub]", *, is_filtered: bool) -> str:
    """Return a table of volumes."""
    from wharf.cli.common.rendering import colour_state, render_no_rows, render_table

    if not volumes:
        return render_no_rows("volumes", is_filtered=is_filtered)
    titles = ["ID", "Name", "Plugin", "Node", "Pool", "State"]
    rows = [
        [
            session.shorten_id(volume.id),
            volume.name,
            volume.plugin_id,
            session.shorten_id(volume.node_id),
            volume.node_pool,
            colour_state(volume.state),
        ]
        for volume in volumes
    ]
    if session.is_all_namespaces:
        titles.append("Namespace")
        rows = [[*row, volume.namespace] for row, volume in zip(rows, volumes, strict=True)]
    return render_table(titles, rows)


def _render_volume(session: Session, volume: "HostVolume") -> str:
    """Return the fields of a volume, one a line."""
    from wharf.cli.common.rendering import colour_state, render_pairs

    modes = [
        f"{capability.access_mode} as {capability.attachment_mode}"
        for capability in volume.requested_capabilities or ()
    ]
    return render_pairs(
        [
            ("ID", volume.id),
            ("Name", volume.name),
            ("Namespace", volume.namespace),
            ("State", colour_state(volume.state)),
            ("Plugin", volume.plugin_id or "none (registered)"),
            ("Node", volume.node_id),
            ("Pool", volume.node_pool),
            ("Path", volume.host_path),
            ("Capacity", f"{volume.capacity_bytes:,} bytes" if volume.capacity_bytes else "unlimited"),
            ("Capabilities", ", ".join(modes)),
            ("Created", session.format_time(volume.create_time)),
        ]
    )
