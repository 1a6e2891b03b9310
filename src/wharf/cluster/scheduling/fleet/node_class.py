"""Node kinds: nodes of one kind get the same result from every check that reads only the node.

Thousands of machines have few kinds, so each check runs once per kind. Attributes that begin with `unique.` are left
out; constraints on them are checked on every node.
"""

import hashlib
from typing import Final

import msgspec

from wharf.contract.model.nodes.node import Node
from wharf.contract.model.nodes.resources import NodeDevice

UNIQUE_NAME_PREFIX: Final = "unique."
"""Attributes and metadata with this prefix differ from node to node."""

_encode = msgspec.msgpack.Encoder(order="deterministic").encode

ClassKey = bytes
"""A text of bytes that is equal for all nodes of one kind."""


def make_class_key(node: Node) -> ClassKey:
    """Return the encoded properties of the node that checks read. They are equal for nodes of one kind."""
    resources = node.node_resources
    networks = (resources.node_networks if resources is not None else None) or ()
    addresses = {address.alias for network in networks for address in network.addresses or ()}
    return _encode(
        (
            node.datacenter,
            node.node_class,
            node.node_pool,
            _drop_unique_names(node.attributes),
            _drop_unique_names(node.meta),
            {name: (info.detected, info.healthy) for name, info in (node.drivers or {}).items()},
            [_make_device_key(device) for device in (resources.devices if resources is not None else None) or ()],
            sorted({network.mode for network in networks}),
            sorted(addresses),
            sorted(node.host_networks or {}),
        )
    )


def compute_node_class(node: Node) -> str:
    """Return the computed class of the node, a text such as `v1:123`. Nodes of one class satisfy the same constraints.

    Unlike node kinds, it leaves out drivers and host networks.
    """
    reduced = msgspec.structs.replace(node, drivers=None, host_networks=None)
    return f"v1:{int.from_bytes(hashlib.blake2b(make_class_key(reduced), digest_size=8).digest(), 'big')}"


def _drop_unique_names(values: dict[str, str] | None) -> dict[str, str]:
    """Return the attributes or metadata without names that begin with `unique.`."""
    return {name: value for name, value in (values or {}).items() if not name.startswith(UNIQUE_NAME_PREFIX)}


def _make_device_key(device: NodeDevice) -> tuple[object, ...]:
    """Return what checks read of this group of devices, to compare it with that of other nodes."""
    healthy = sum(instance.healthy for instance in device.instances or ())
    attributes = {
        name: value for name, value in (device.attributes or {}).items() if not name.startswith(UNIQUE_NAME_PREFIX)
    }
    return device.vendor, device.type, device.name, healthy, attributes
