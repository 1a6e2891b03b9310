"""Devices: which of a node's fit what a task asks for, and which instances it gets (scheduling.md 2.6)."""

from collections.abc import Iterable
from typing import Final

from wharf.model.allocated_resources import AllocatedDevice
from wharf.model.group import TaskGroup
from wharf.model.node import Node
from wharf.model.node_resources import DeviceAttribute, NodeDevice
from wharf.model.placement import Affinity, Constraint, Operand
from wharf.model.resources import RequestedDevice
from wharf.scheduling.holdings import DeviceKey, Holdings
from wharf.scheduling.operands import holds
from wharf.scheduling.units import in_base_unit

Value = str | float | bool | None

ATTRIBUTE: Final = "${device.attr."
_ORDERED: Final = frozenset((Operand.LESS, Operand.AT_MOST, Operand.GREATER, Operand.AT_LEAST))
_EQUAL: Final = frozenset((Operand.EQUALS, Operand.EQUALS_TWICE, Operand.IS))
_DIFFERENT: Final = frozenset((Operand.DIFFERS, Operand.NOT))


def asked_devices(group: TaskGroup) -> list[tuple[str, RequestedDevice]]:
    """Every ask of the group with the task that asks."""
    return [
        (task.name, asked)
        for task in group.tasks or ()
        if task.resources is not None
        for asked in task.resources.devices or ()
    ]


def has_enough(node: Node, asks: Iterable[RequestedDevice]) -> bool:
    """Whether the node's healthy instances, were they all free, would do. One ask may be filled from several groups."""
    devices = devices_of(node)
    left = {id(device): len(healthy_of(device)) for device in devices}
    for asked in asks:
        wanted = asked.count
        for device in devices:
            if wanted and left[id(device)] and fits(device, asked):
                taken = min(wanted, left[id(device)])
                left[id(device)] -= taken
                wanted -= taken
        if wanted:
            return False
    return True


def assign(node: Node, asked: RequestedDevice, held: Holdings) -> AllocatedDevice | None:
    """Free instances of the one group that fits best; None: no group has so many free."""
    best: tuple[float, AllocatedDevice] | None = None
    for device in devices_of(node):
        if not fits(device, asked):
            continue
        key = key_of(device)
        free = [instance for instance in healthy_of(device) if (key, instance) not in held.devices]
        if len(free) < asked.count:
            continue
        score = affinity(device, asked.affinities or ())
        if best is None or score > best[0]:
            given = AllocatedDevice(
                vendor=device.vendor, type=device.type, name=device.name, device_ids=tuple(free[: asked.count])
            )
            best = score, given
    return None if best is None else best[1]


def best_affinity(node: Node, asks: Iterable[RequestedDevice]) -> float:
    """The matched weights of the best groups over all weights, for the score of a node."""
    matched = total = 0.0
    for asked in asks:
        weights = sum(abs(each.weight) for each in asked.affinities or ())
        if weights:
            scores = [affinity(device, asked.affinities or ()) for device in devices_of(node) if fits(device, asked)]
            matched += max(scores, default=0.0) * weights
            total += weights
    return matched / total if total else 0.0


def fits(device: NodeDevice, asked: RequestedDevice) -> bool:
    return _is_named(device, asked.name) and all(_satisfies(device, each) for each in asked.constraints or ())


def key_of(device: NodeDevice) -> DeviceKey:
    return device.vendor, device.type, device.name


def affinity(device: NodeDevice, affinities: Iterable[Affinity]) -> float:
    matched = total = 0.0
    for each in affinities:
        total += abs(each.weight)
        if _satisfies(device, each):
            matched += each.weight
    return matched / total if total else 0.0


def _is_named(device: NodeDevice, name: str) -> bool:
    """`type`, `vendor/type` or `vendor/type/name`."""
    parts = name.split("/", 2)
    if len(parts) == 1:
        return parts[0] == device.type
    if parts[:2] != [device.vendor, device.type]:
        return False
    return len(parts) == 2 or parts[2] == device.name


def devices_of(node: Node) -> tuple[NodeDevice, ...]:
    resources = node.node_resources
    return () if resources is None else resources.devices or ()


def healthy_of(device: NodeDevice) -> list[str]:
    return [instance.id for instance in device.instances or () if instance.healthy]


def _satisfies(device: NodeDevice, asked: Constraint | Affinity) -> bool:
    left, right = _resolve(device, asked.l_target), _resolve(device, asked.r_target)
    operand = asked.operand
    if operand in _DIFFERENT:
        return _differ(left, right)
    if left is None:
        return operand == Operand.IS_NOT_SET
    if operand in _EQUAL or operand in _ORDERED:
        return right is not None and _compare(operand, left, right)
    return holds(operand, _text(left), None if right is None else _text(right))


def _resolve(device: NodeDevice, target: str) -> Value:
    if not target.startswith("${"):
        return target
    if target.startswith(ATTRIBUTE):
        attribute = (device.attributes or {}).get(target[len(ATTRIBUTE) : -1])
        return None if attribute is None else _value(attribute)
    match target:
        case "${device.model}":
            return device.name
        case "${device.vendor}":
            return device.vendor
        case "${device.type}":
            return device.type
        case "${device.ids}":
            return ",".join(instance.id for instance in device.instances or ())
    return None


def _value(attribute: DeviceAttribute) -> Value:
    if attribute.string is not None:
        return attribute.string
    if attribute.bool_ is not None:
        return attribute.bool_
    number = attribute.float_ if attribute.float_ is not None else attribute.int_
    if number is None:
        return None
    return f"{number:g} {attribute.unit}" if attribute.unit else float(number)


def _differ(left: Value, right: Value) -> bool:
    if left is None or right is None:
        return left is not right
    return _compare(Operand.DIFFERS, left, right)


def _compare(operand: str, left: Value, right: Value) -> bool:
    """As amounts, where both sides are some of one kind; else as texts. What cannot be compared is false."""
    left_amount, right_amount = in_base_unit(_text(left)), in_base_unit(_text(right))
    if left_amount is None and right_amount is None:
        return holds(operand, _text(left), _text(right))
    if left_amount is None or right_amount is None or left_amount[1] != right_amount[1]:
        return False
    return holds(operand, repr(left_amount[0]), repr(right_amount[0]))


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
