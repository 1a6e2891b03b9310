"""What makes two nodes alike for every check that asks about the node alone.

Thousands of machines are of a few kinds. What one of a kind satisfies, all of it do, so each question is asked once a
kind. Names that begin with `unique.` are left out: who asks for those asks every node.
"""

import hashlib
from typing import Final

import msgspec

from wharf.contract.model.nodes.node import Node
from wharf.contract.model.nodes.resources import NodeDevice

UNIQUE_NAME_PREFIX: Final = "unique."

_encode = msgspec.msgpack.Encoder(order="deterministic").encode

ClassKey = bytes


def make_class_key(node: Node) -> ClassKey:
    """Equal for nodes that no check tells apart."""
    resources = node.node_resources
    networks = (resources.node_networks if resources is not None else None) or ()
    addresses = {address.alias for network in networks for address in network.addresses or ()}
    return _encode(
        (
            node.datacenter,
            node.node_class,
            node.node_pool,
            _common(node.attributes),
            _common(node.meta),
            {name: (info.detected, info.healthy) for name, info in (node.drivers or {}).items()},
            [_device(device) for device in (resources.devices if resources is not None else None) or ()],
            sorted({network.mode for network in networks}),
            sorted(addresses),
            sorted(node.host_networks or {}),
        )
    )


def compute_node_class(node: Node) -> str:
    """Its name, as the node tells it: nodes of one name satisfy the same constraints."""
    alike = msgspec.structs.replace(node, drivers=None, host_networks=None)
    return f"v1:{int.from_bytes(hashlib.blake2b(make_class_key(alike), digest_size=8).digest(), 'big')}"


def _common(values: dict[str, str] | None) -> dict[str, str]:
    return {name: value for name, value in (values or {}).items() if not name.startswith(UNIQUE_NAME_PREFIX)}


def _device(device: NodeDevice) -> tuple[object, ...]:
    healthy = sum(instance.healthy for instance in device.instances or ())
    attributes = {
        name: value for name, value in (device.attributes or {}).items() if not name.startswith(UNIQUE_NAME_PREFIX)
    }
    return device.vendor, device.type, device.name, healthy, attributes
