"""Matches device requests with the devices of a node and assigns instances (scheduling.md 2.6).

A node reports its devices in device groups: equal devices with vendor, type, name and attributes, such as all its GPUs
of one model. The instances of a group are the single devices. Attributes may have units: `11 GiB` equals `11264 MiB`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from wharf.cluster.scheduling.constraints import evaluate_comparison
from wharf.cluster.scheduling.resources.exclusive import DeviceKey, ExclusiveResources
from wharf.contract.model.allocations.resources import AllocatedDevice
from wharf.contract.model.jobs.constraints import Affinity, Constraint, Operand
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.nodes.resources import DeviceAttribute, NodeDevice

_AMOUNT_PATTERN: Final = re.compile(r"\s*([+-]?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([A-Za-z/]*)\s*\Z")
"""A number with an optional unit."""


def _make_unit_table(base_unit: str, **factors: float) -> dict[str, tuple[float, str]]:
    """Return entries for `UNIT_FACTORS`: for each unit in `prefixes`, its factor and the base unit.

    Example: `_make_unit_table("Hz", kHz=1e3)` returns `{"kHz": (1000.0, "Hz")}`.
    """
    return {unit: (factor, base_unit) for unit, factor in factors.items()}


_BINARY: Final = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "PiB": 2.0**50, "EiB": 2.0**60}
_DECIMAL: Final = {"kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15, "EB": 1e18, "B": 1.0}
_BYTES: Final = {**_BINARY, **_DECIMAL}
UNIT_FACTORS: Final[dict[str, tuple[float, str]]] = {
    **_make_unit_table("B", **_BYTES),
    **{f"{name}/s": (factor, "B/s") for name, factor in _BYTES.items()},
    **_make_unit_table("Hz", Hz=1.0, kHz=1e3, MHz=1e6, GHz=1e9),
    **_make_unit_table("W", mW=1e-3, W=1.0, kW=1e3, MW=1e6, GW=1e9),
}
"""By unit, the factor to its base unit and the base unit."""


def parse_amount(text: str) -> tuple[float, str] | None:
    """Parse an amount such as `11 GiB` and return the number in its base unit, and the base unit.

    The base unit is empty for a number without unit. Return `None` if the text is not a number with a known unit.
    """
    found = _AMOUNT_PATTERN.match(text)
    if found is None:
        return None
    number, unit = float(found[1]), found[2]
    if not unit:
        return number, ""
    factor_and_base = UNIT_FACTORS.get(unit)
    return None if factor_and_base is None else (number * factor_and_base[0], factor_and_base[1])


DeviceValue = str | float | bool | None
"""The value of one side of a device constraint. `None`: the device has no such attribute."""

DEVICE_ATTRIBUTE_PREFIX: Final = "${device.attr."
"""How a reference to a device attribute begins, such as `${device.attr.memory}`."""
_ORDER_OPERANDS: Final = frozenset((Operand.LESS, Operand.AT_MOST, Operand.GREATER, Operand.AT_LEAST))
_EQUALITY_OPERANDS: Final = frozenset((Operand.EQUALS, Operand.EQUALS_TWICE, Operand.IS))
_INEQUALITY_OPERANDS: Final = frozenset((Operand.DIFFERS, Operand.NOT))


MAX_DEVICE_SEARCH_STEPS: Final = 1_000
"""Limits the time of a search for device groups: a node that needs more steps cannot take the allocation."""

NOTHING_IN_USE: Final = ExclusiveResources()
"""The devices in use on a node without allocations."""


def list_device_requests(group: TaskGroup) -> list[tuple[str, RequestedDevice]]:
    """Return every device request of the group as a pair of task name and request."""
    return [
        (task.name, request)
        for task in group.tasks or ()
        if task.resources is not None
        for request in task.resources.devices or ()
    ]


def has_enough_devices(node: Node, requests: Sequence[RequestedDevice]) -> bool:
    """Return whether the node's healthy device instances would satisfy all requests if none were in use.

    It is the same search as that of `assign_devices`, so a node without used devices that passes is never refused later
    (ADR 72).
    """
    return has_free_devices(node, requests, NOTHING_IN_USE)


def has_free_devices(node: Node, requests: Sequence[RequestedDevice], in_use: ExclusiveResources) -> bool:
    """Return whether the node's healthy device instances that are not in use satisfy all requests."""
    return _choose_groups(node, requests, in_use).missing is None


class DeviceShortage(Exception):
    """The node has too few free device instances for a request. `name` is the name that was requested."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def assign_devices(
    node: Node, requests: Sequence[RequestedDevice], in_use: ExclusiveResources
) -> list[AllocatedDevice]:
    """Return free instances for each request, all instances of a request from one matching device group.

    Of several groups, the one with the highest affinity score is taken, unless a later request then finds no group.
    `in_use` are the instances in use on the node; it is not changed. Raises `DeviceShortage` if not all requests can be
    satisfied.
    """
    choice = _choose_groups(node, requests, in_use)
    if choice.missing is not None:
        raise DeviceShortage(choice.missing.name)
    free_by_key: dict[DeviceKey, list[str]] = {}
    assigned = []
    for request, device in zip(requests, choice.groups, strict=True):
        key = make_device_key(device)
        free = free_by_key.get(key)
        if free is None:
            free = free_by_key[key] = _list_free_instances(device, in_use)
        ids, free_by_key[key] = free[: request.count], free[request.count :]
        assigned.append(
            AllocatedDevice(vendor=device.vendor, type=device.type, name=device.name, device_ids=tuple(ids))
        )
    return assigned


def list_instances_to_hold(
    node: Node, requests: Sequence[RequestedDevice], in_use: ExclusiveResources
) -> list[tuple[DeviceKey, str]]:
    """Return the free instances that are held on a reserved node for these requests, at most as many as they request.

    They are of the device groups that the requests would be assigned on the node without allocations.
    """
    held: dict[tuple[DeviceKey, str], None] = {}
    groups = _choose_groups(node, requests, NOTHING_IN_USE).groups
    for request, device in zip(requests, groups, strict=False):  # Without groups, the node cannot take the allocation.
        key = make_device_key(device)
        free = [(key, each) for each in _list_free_instances(device, in_use) if (key, each) not in held]
        held |= dict.fromkeys(free[: request.count])
    return list(held)


class _GroupChoice(NamedTuple):
    """The result of the search for device groups."""

    groups: list[NodeDevice]
    """The group of each request, or an empty list if not all requests can be satisfied."""
    missing: RequestedDevice | None
    """The first request for which no group was found, whatever groups the requests before it used."""


def _choose_groups(node: Node, requests: Sequence[RequestedDevice], in_use: ExclusiveResources) -> _GroupChoice:
    """Choose one device group for each request so that their free instances suffice for all requests.

    This is a depth-first search that tries the group with the highest affinity score first. After
    `MAX_DEVICE_SEARCH_STEPS` steps it counts as failed.
    """
    devices = list_devices(node)
    free_counts = [len(_list_free_instances(device, in_use)) for device in devices]
    options = [_rank_groups(devices, request) for request in requests]
    chosen: list[int] = []
    """For each request that has a group now, the index of the group in the options of the request."""
    deepest, next_option = 0, 0
    for _ in range(MAX_DEVICE_SEARCH_STEPS):
        position = len(chosen)
        if position == len(requests):
            groups = [devices[options[index][option]] for index, option in enumerate(chosen)]
            return _GroupChoice(groups, None)
        deepest = max(deepest, position)
        count, ranked = requests[position].count, options[position]
        option = next((index for index in range(next_option, len(ranked)) if free_counts[ranked[index]] >= count), None)
        if option is not None:
            free_counts[ranked[option]] -= count
            chosen.append(option)
            next_option = 0
        elif chosen:
            option = chosen.pop()
            free_counts[options[position - 1][option]] += requests[position - 1].count
            next_option = option + 1
        else:
            break
    return _GroupChoice([], requests[deepest])


def _rank_groups(devices: Sequence[NodeDevice], request: RequestedDevice) -> list[int]:
    """Return the indexes of the device groups that match the request, the highest affinity score first."""
    matching = [index for index, device in enumerate(devices) if matches_device_request(device, request)]
    return sorted(matching, key=lambda index: -score_device_affinity(devices[index], request.affinities or ()))


def _list_free_instances(device: NodeDevice, in_use: ExclusiveResources) -> list[str]:
    """Return the ids of the healthy instances of the device group that are not in use."""
    key = make_device_key(device)
    return [instance for instance in list_healthy_instances(device) if (key, instance) not in in_use.devices]


def score_best_devices(node: Node, requests: Iterable[RequestedDevice]) -> float:
    """Return how well the node's devices match the affinities of the requests: at most 1, and 0 without affinities.

    For each request, the device group with the highest affinity score counts. The result is the mean of these scores,
    weighted by the sum of the absolute affinity weights of each request.
    """
    matched = total = 0.0
    for request in requests:
        weights = sum(abs(affinity.weight) for affinity in request.affinities or ())
        if weights:
            scores = [
                score_device_affinity(device, request.affinities or ())
                for device in list_devices(node)
                if matches_device_request(device, request)
            ]
            matched += max(scores, default=0.0) * weights
            total += weights
    return matched / total if total else 0.0


def matches_device_request(device: NodeDevice, request: RequestedDevice) -> bool:
    """Return whether the device group has the requested name and satisfies all constraints."""
    return _matches_name(device, request.name) and all(
        _satisfies_constraint(device, constraint) for constraint in request.constraints or ()
    )


def make_device_key(device: NodeDevice) -> DeviceKey:
    """Return the key of the device group within its node: vendor, type and name."""
    return device.vendor, device.type, device.name


def score_device_affinity(device: NodeDevice, affinities: Iterable[Affinity]) -> float:
    """Return how well the device group matches the affinities: from -1 to 1, and 0 without affinities.

    It is the sum of the weights of matching affinities, which may be negative, divided by the sum of all absolute
    weights.
    """
    matched = total = 0.0
    for affinity in affinities:
        total += abs(affinity.weight)
        if _satisfies_constraint(device, affinity):
            matched += affinity.weight
    return matched / total if total else 0.0


def _matches_name(device: NodeDevice, name: str) -> bool:
    """Return whether the device group has the requested name: `type`, `vendor/type` or `vendor/type/name`."""
    parts = name.split("/", 2)
    if len(parts) == 1:
        return parts[0] == device.type
    if parts[:2] != [device.vendor, device.type]:
        return False
    return len(parts) == 2 or parts[2] == device.name


def can_be_same_device(first: str, second: str) -> bool:
    """Return whether one device can have both names: `type`, `vendor/type` or `vendor/type/name`.

    Parts that one of the names leaves out match anything.
    """
    return all(
        not part or not other or part == other
        for part, other in zip(_split_device_name(first), _split_device_name(second), strict=True)
    )


def _split_device_name(name: str) -> tuple[str, str, str]:
    """Return vendor, type and name of a device name. Parts that it leaves out are empty."""
    parts = name.split("/", 2)
    if len(parts) == 1:
        return "", parts[0], ""
    return parts[0], parts[1], parts[2] if len(parts) > 2 else ""


def list_devices(node: Node) -> tuple[NodeDevice, ...]:
    """Return the device groups of the node: one entry for all equal devices."""
    resources = node.node_resources
    return () if resources is None else resources.devices or ()


def list_healthy_instances(device: NodeDevice) -> list[str]:
    """Return the ids of the healthy instances (single devices) of the device group."""
    return [instance.id for instance in device.instances or () if instance.healthy]


def _satisfies_constraint(device: NodeDevice, constraint: Constraint | Affinity) -> bool:
    """Return whether the device group satisfies the constraint, or matches the affinity."""
    left, right = _resolve_target(device, constraint.l_target), _resolve_target(device, constraint.r_target)
    operand = constraint.operand
    if operand in _INEQUALITY_OPERANDS:
        return _is_different(left, right)
    if left is None:
        return operand == Operand.IS_NOT_SET
    if operand in _EQUALITY_OPERANDS or operand in _ORDER_OPERANDS:
        return right is not None and _compare_values(operand, left, right)
    return evaluate_comparison(operand, _format_value(left), None if right is None else _format_value(right))


def _resolve_target(device: NodeDevice, target: str) -> DeviceValue:
    """Return the value of one side of a device constraint, or `None` if the device group has no such value.

    A target that does not begin with `${` is a literal. Others are references such as `${device.attr.memory}` or
    `${device.model}`.
    """
    if not target.startswith("${"):
        return target
    if target.startswith(DEVICE_ATTRIBUTE_PREFIX):
        attribute = (device.attributes or {}).get(target[len(DEVICE_ATTRIBUTE_PREFIX) : -1])
        return None if attribute is None else _get_attribute_value(attribute)
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


def _get_attribute_value(attribute: DeviceAttribute) -> DeviceValue:
    """Return the value of the device attribute, or `None` if it has no value.

    A number with a unit becomes a text such as `11 GiB`.
    """
    if attribute.string is not None:
        return attribute.string
    if attribute.bool_ is not None:
        return attribute.bool_
    number = attribute.float_ if attribute.float_ is not None else attribute.int_
    if number is None:
        return None
    return f"{number:g} {attribute.unit}" if attribute.unit else float(number)


def _is_different(left: DeviceValue, right: DeviceValue) -> bool:
    """Return whether two values of a device constraint differ. Two missing values (`None`) are equal."""
    if left is None or right is None:
        return left is not right
    return _compare_values(Operand.DIFFERS, left, right)


def _compare_values(operand: str, left: DeviceValue, right: DeviceValue) -> bool:
    """Return whether the comparison `left operand right` is true.

    Two amounts of the same base unit, such as `1 GiB` and `1024 MiB`, are compared as numbers. Two other values are
    compared as texts. False if only one side is an amount, or if the base units differ.
    """
    left_amount, right_amount = parse_amount(_format_value(left)), parse_amount(_format_value(right))
    if left_amount is None and right_amount is None:
        return evaluate_comparison(operand, _format_value(left), _format_value(right))
    if left_amount is None or right_amount is None or left_amount[1] != right_amount[1]:
        return False
    return evaluate_comparison(operand, repr(left_amount[0]), repr(right_amount[0]))


def _format_value(value: DeviceValue) -> str:
    """Return the value as a text for comparisons: `true` or `false`, six digits of a number, or the text itself."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
