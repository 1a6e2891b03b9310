"""What a constraint's side stands for on one node: a literal, or something that the node says of itself."""

from typing import Final

from wharf.model.node import Node

NODE_FIELDS: Final = {
    "node.unique.id": "id",
    "node.unique.name": "name",
    "node.datacenter": "datacenter",
    "node.class": "node_class",
    "node.pool": "node_pool",
}
UNIQUE: Final = ("${node.unique.", "${attr.unique.", "${meta.unique.", "${unique.")
"""What begins so differs from node to node, and is no part of a node's class."""


def is_variable(target: str) -> bool:
    return target.startswith("${")


def is_unique(target: str) -> bool:
    return target.startswith(UNIQUE)


def resolve(target: str, node: Node) -> str | None:
    """The text that the target stands for; None: the node has nothing of that name."""
    if not is_variable(target):
        return target
    if not target.endswith("}"):
        return None
    name = target[2:-1]
    if name.startswith("attr."):
        return (node.attributes or {}).get(name[len("attr.") :])
    if name.startswith("meta."):
        return (node.meta or {}).get(name[len("meta.") :])
    field = NODE_FIELDS.get(name)
    return getattr(node, field) if field is not None else None
