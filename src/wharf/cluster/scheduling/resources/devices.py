"""Amounts with units, as devices tell them: `11 GiB` and `11264 MiB` are the same.

Devices: which of a node's fit what a task asks for, and which instances it gets (scheduling.md 2.6).
"""

import re
from collections.abc import Iterable
from typing import Final

from wharf.cluster.scheduling.constraints import evaluate_comparison
from wharf.cluster.scheduling.resources.exclusive import DeviceKey, ExclusiveResources
from wharf.contract.model.allocations.resources import AllocatedDevice
from wharf.contract.model.jobs.constraints import Affinity, Constraint, Operand
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.nodes.resources import DeviceAttribute, NodeDevice

_AMOUNT: Final = re.compile(r"\s*([+-]?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([A-Za-z/]*)\s*\Z")


def _scaled(base: str, **prefixes: float) -> dict[str, tuple[float, str]]:
    return {name: (factor, base) for name, factor in prefixes.items()}


_BINARY: Final = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "PiB": 2.0**50, "EiB": 2.0**60}
_DECIMAL: Final = {"kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15, "EB": 1e18, "B": 1.0}
_BYTES: Final = {**_BINARY, **_DECIMAL}
UNIT_FACTORS: Final[dict[str, tuple[float, str]]] = {
    **_scaled("B", **_BYTES),
    **{f"{name}/s": (factor, "B/s") for name, factor in _BYTES.items()},
    **_scaled("Hz", Hz=1.0, kHz=1e3, MHz=1e6, GHz=1e9),
    **_scaled("W", mW=1e-3, W=1.0, kW=1e3, MW=1e6, GW=1e9),
}


def parse_amount(text: str) -> tuple[float, str] | None:
    """The number in the unit that all of its kind are told in, and that unit; None: it is no amount."""
    found = _AMOUNT.match(text)
    if found is None:
        return None
    number, unit = float(found[1]), found[2]
    if not unit:
        return number, ""
    factor_and_base = UNIT_FACTORS.get(unit)
    return None if factor_and_base is None else (number * factor_and_base[0], factor_and_base[1])


DeviceValue = str | float | bool | None

DEVICE_ATTRIBUTE_PREFIX: Final = "${device.attr."
_ORDERED: Final = frozenset((Operand.LESS, Operand.AT_MOST, Operand.GREATER, Operand.AT_LEAST))
_EQUAL: Final = frozenset((Operand.EQUALS, Operand.EQUALS_TWICE, Operand.IS))
_DIFFERENT: Final = frozenset((Operand.DIFFERS, Operand.NOT))


def list_device_requests(group: TaskGroup) -> list[tuple[str, RequestedDevice]]:
    """Every ask of the group with the task that asks."""
    return [
        (task.name, asked)
        for task in group.tasks or ()
        if task.resources is not None
        for asked in task.resources.devices or ()
    ]


def has_enough_devices(node: Node, asks: Iterable[RequestedDevice]) -> bool:
    """Whether the node's healthy instances, were they all free, would do. One ask may be filled from several groups."""
    devices = list_devices(node)
    left = {id(device): len(list_healthy_instances(device)) for device in devices}
    for asked in asks:
        wanted = asked.count
        for device in devices:
            if wanted and left[id(device)] and matches_device_request(device, asked):
                taken = min(wanted, left[id(device)])
                left[id(device)] -= taken
                wanted -= taken
        if wanted:
            return False
    return True


def assign_devices(node: Node, asked: RequestedDevice, held: ExclusiveResources) -> AllocatedDevice | None:
    """Free instances of the one group that fits best; None: no group has so many free."""
    best: tuple[float, AllocatedDevice] | None = None
    for device in list_devices(node):
        if not matches_device_request(device, asked):
            continue
        key = make_device_key(device)
        free = [instance for instance in list_healthy_instances(device) if (key, instance) not in held.devices]
        if len(free) < asked.count:
            continue
        score = score_device_affinity(device, asked.affinities or ())
        if best is None or score > best[0]:
            given = AllocatedDevice(
                vendor=device.vendor, type=device.type, name=device.name, device_ids=tuple(free[: asked.count])
            )
            best = score, given
    return None if best is None else best[1]


def score_best_devices(node: Node, asks: Iterable[RequestedDevice]) -> float:
    """The matched weights of the best groups over all weights, for the score of a node."""
    matched = total = 0.0
    for asked in asks:
        weights = sum(abs(each.weight) for each in asked.affinities or ())
        if weights:
            scores = [
                score_device_affinity(device, asked.affinities or ())
                for device in list_devices(node)
                if matches_device_request(device, asked)
            ]
            matched += max(scores, default=0.0) * weights
            total += weights
    return matched / total if total else 0.0


def matches_device_request(device: NodeDevice, asked: RequestedDevice) -> bool:
    return _is_named(device, asked.name) and all(_satisfies(device, each) for each in asked.constraints or ())


def make_device_key(device: NodeDevice) -> DeviceKey:
    return device.vendor, device.type, device.name


def score_device_affinity(device: NodeDevice, affinities: Iterable[Affinity]) -> float:
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


def list_devices(node: Node) -> tuple[NodeDevice, ...]:
    resources = node.node_resources
    return () if resources is None else resources.devices or ()


def list_healthy_instances(device: NodeDevice) -> list[str]:
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
    return evaluate_comparison(operand, _text(left), None if right is None else _text(right))


def _resolve(device: NodeDevice, target: str) -> DeviceValue:
    if not target.startswith("${"):
        return target
    if target.startswith(DEVICE_ATTRIBUTE_PREFIX):
        attribute = (device.attributes or {}).get(target[len(DEVICE_ATTRIBUTE_PREFIX) : -1])
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


def _value(attribute: DeviceAttribute) -> DeviceValue:
    if attribute.string is not None:
        return attribute.string
    if attribute.bool_ is not None:
        return attribute.bool_
    number = attribute.float_ if attribute.float_ is not None else attribute.int_
    if number is None:
        return None
    return f"{number:g} {attribute.unit}" if attribute.unit else float(number)


def _differ(left: DeviceValue, right: DeviceValue) -> bool:
    if left is None or right is None:
        return left is not right
    return _compare(Operand.DIFFERS, left, right)


def _compare(operand: str, left: DeviceValue, right: DeviceValue) -> bool:
    """As amounts, where both sides are some of one kind; else as texts. What cannot be compared is false."""
    left_amount, right_amount = parse_amount(_text(left)), parse_amount(_text(right))
    if left_amount is None and right_amount is None:
        return evaluate_comparison(operand, _text(left), _text(right))
    if left_amount is None or right_amount is None or left_amount[1] != right_amount[1]:
        return False
    return evaluate_comparison(operand, repr(left_amount[0]), repr(right_amount[0]))


def _text(value: DeviceValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
