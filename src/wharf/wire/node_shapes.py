"""Bodies about nodes that are no records: how nodes are shown, and what is asked of them."""

from typing import TYPE_CHECKING, Any, Final

import msgspec

from wharf.model.node import DrainMetadata, DriverInfo, Node, NodeHostVolume, NodeStatus, SchedulingEligibility
from wharf.model.node_resources import NodeResources, ReservedResources
from wharf.model.record import Record

_NOT_SHOWN: Final = frozenset(("secret_digest", "reports_from"))
_SHOWN_FIELDS: Final = tuple(name for name in Node.__struct_fields__ if name not in _NOT_SHOWN)


def _shown_definition() -> list[tuple[str, Any, Any]]:
    """The fields of a node as replies show it: all of the record's but two, and a SecretID that is empty."""
    found: list[tuple[str, Any, Any]] = [("secret_id", str, msgspec.field(name="SecretID", default=""))]
    for field in msgspec.structs.fields(Node):
        if field.name in _NOT_SHOWN:
            continue
        found.append((field.name, field.type, msgspec.field(name=field.encode_name, default=field.default)))
    return found


# Made of the record's fields, so that a field of nodes is declared once.
if TYPE_CHECKING:

    class NodeShown(Node):
        secret_id: str = ""

else:
    NodeShown = msgspec.defstruct(
        "NodeShown", _shown_definition(), module=__name__, frozen=True, gc=False, kw_only=True
    )


def shown_node(node: Node) -> msgspec.Struct:
    """The node as everybody may see it."""
    return NodeShown(**{name: getattr(node, name) for name in _SHOWN_FIELDS})


class NodeListStub(Record):
    """A node as lists show it."""

    address: str = ""
    id: str
    attributes: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    datacenter: str = ""
    name: str = ""
    node_pool: str = ""
    node_class: str = ""
    version: str = ""
    drain: bool = False
    scheduling_eligibility: SchedulingEligibility = SchedulingEligibility.ELIGIBLE
    status: NodeStatus = NodeStatus.INITIALIZING
    status_description: str = ""
    drivers: dict[str, DriverInfo] | None = None
    host_volumes: dict[str, NodeHostVolume] | None = None
    node_resources: NodeResources | msgspec.UnsetType | None = msgspec.UNSET
    reserved_resources: ReservedResources | msgspec.UnsetType | None = msgspec.UNSET
    last_drain: DrainMetadata | None = None
    create_index: int = 0
    modify_index: int = 0


class DrainSpec(Record):
    """`deadline` in ns: above 0 a bound, 0 none, below 0 everything moves at once."""

    deadline: int = 0
    ignore_system_jobs: bool = False


class NodeDrainRequest(Record):
    """Without a `drain_spec` the drain is called off."""

    node_id: str = ""
    drain_spec: DrainSpec | None = None
    mark_eligible: bool = False
    meta: dict[str, str] | None = None


class NodeChangeResponse(Record):
    """What came of a drain or of a change of eligibility."""

    node_modify_index: int = 0
    eval_ids: tuple[str, ...] | None = msgspec.field(name="EvalIDs", default=None)
    eval_create_index: int = 0
    index: int = 0
