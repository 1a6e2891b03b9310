"""The list of host volumes and the page of one."""

from typing import Final

import msgspec

from wharf.contract.model.jobs.volumes import AccessMode
from wharf.contract.model.volumes import HostVolume, HostVolumeState, HostVolumeStub, make_host_volume_stub
from wharf.web.rendering import build_link, format_count
from wharf.web.views.field_errors import FormView
from wharf.web.views.listing import ListView
from wharf.web.views.states import State, Tone

MEGABYTE: Final = 1024 * 1024
ACCESS_CHOICES: Final = (
    (AccessMode.SINGLE_NODE_WRITER, "read and write (single-node-writer)"),
    (AccessMode.SINGLE_NODE_READER, "read only (single-node-reader-only)"),
    (AccessMode.SINGLE_NODE_SINGLE_WRITER, "one writer at a time (single-node-single-writer)"),
    (AccessMode.SINGLE_NODE_MULTI_WRITER, "several writers (single-node-multi-writer)"),
)
FIELD_HINTS: Final = (
    ("no node can create", ""),
    ("missing name", "name"),
    ("invalid name", "name"),
    ("has a volume", "name"),
    ("namespace", "namespace"),
    ("access mode", "access"),
    ("capacity_max", "max"),
    ("capacity", "min"),
    ("host path", "path"),
    ("node pool", "pool"),
    ("plugin", "plugin"),
    ("node", "node"),
)
"""Parts of the texts of mistakes, and their fields. A text about a node is last: others name a node too."""
NUMBER_HINTS: Final = (("min:", "min"), ("max:", "max"))
"""The same for numbers, which the form itself checks."""
EMPTY_VOLUME_FORM: Final = FormView({"namespace": "default", "access": AccessMode.SINGLE_NODE_WRITER})
STATES: Final = {
    HostVolumeState.PENDING: State("waits for its node", Tone.WAIT),
    HostVolumeState.READY: State("ready", Tone.GOOD),
    HostVolumeState.UNAVAILABLE: State("not available", Tone.BAD),
}


class VolumeRow(msgspec.Struct, frozen=True):
    """A host volume in the list."""

    id: str
    url: str
    name: str
    namespace: str
    state: State
    pool: str
    node_url: str
    short_node_id: str
    size: str


class VolumeView(msgspec.Struct, frozen=True):
    """The page of a host volume. The parameters of its plugin may be secret, so they are not shown."""

    row: VolumeRow
    facts: tuple[tuple[str, str], ...]
    delete_url: str


class VolumeListView(msgspec.Struct, frozen=True):
    """The list of host volumes, with the forms that add one."""

    list: ListView[VolumeRow]
    create: FormView
    register: FormView
    access_modes: tuple[tuple[str, str], ...] = ACCESS_CHOICES


def build_volume_row(volume: HostVolumeStub) -> VolumeRow:
    """Return a host volume as the list shows it."""
    namespace = volume.namespace if volume.namespace != "default" else ""
    return VolumeRow(
        id=volume.id,
        url=build_link("volumes", volume.id, namespace=namespace),
        name=volume.name,
        namespace=volume.namespace,
        state=STATES[volume.state],
        pool=volume.node_pool,
        node_url=build_link("nodes", volume.node_id) if volume.node_id else "",
        short_node_id=volume.node_id[:8],
        size=_format_size(volume.capacity_bytes),
    )


def build_volume_view(volume: HostVolume) -> VolumeView:
    """Return the page of a host volume."""
    uses = [f"{each.access_mode}, {each.attachment_mode}" for each in volume.requested_capabilities or ()]
    sizes = [_format_size(volume.requested_capacity_min_bytes), _format_size(volume.requested_capacity_max_bytes)]
    facts = (
        ("ID", volume.id),
        ("Folder on the node", volume.host_path),
        ("Plugin", volume.plugin_id),
        ("Size", _format_size(volume.capacity_bytes)),
        ("Requested size", " to ".join(size for size in sizes if size)),
        ("May be used", "; ".join(uses)),
        ("Being deleted", "yes" if volume.deletion_started else ""),
    )
    return VolumeView(
        row=build_volume_row(make_host_volume_stub(volume)),
        facts=tuple((name, text) for name, text in facts if text),
        delete_url=build_link(
            "volumes", volume.id, "delete", namespace=volume.namespace if volume.namespace != "default" else ""
        ),
    )


def _format_size(size_bytes: int) -> str:
    """Return a size in megabytes; empty if it is not known."""
    return f"{format_count(round(size_bytes / MEGABYTE))} MB" if size_bytes else ""
