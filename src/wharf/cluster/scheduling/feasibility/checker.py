"""Which nodes can run a group at all, and why the others cannot: all that is asked of the node alone.

Each question is asked once a kind of node, and the answers are kept from one evaluation to the next. Only what names a
unique property, and volumes of hosts, is asked node by node. What depends on other work (ports, hosts, room) is asked
when a node is chosen.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from wharf.cluster.scheduling.constraints import (
    CROSS_ALLOCATION_OPERANDS,
    evaluate_comparison,
    is_unique_target,
    is_variable_target,
    resolve_target,
)
from wharf.cluster.scheduling.feasibility.location import ALL_DATACENTERS, is_in_pool_and_datacenter, matches_datacenter
from wharf.cluster.scheduling.fleet.columns import Codes, Mask, ValueCodes
from wharf.cluster.scheduling.fleet.fleet import MISSING_CODE, Fleet
from wharf.cluster.scheduling.resources.devices import has_enough_devices, list_device_requests
from wharf.contract.model.jobs.constraints import Constraint
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import ALL_NODE_POOL, Job
from wharf.contract.model.jobs.networks import DEFAULT_HOST_NETWORK
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.jobs.volumes import AccessMode, AttachmentMode, VolumeRequest, VolumeType
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.volumes import HostVolume, HostVolumeState

MISSING_DRIVERS: Final = "missing drivers"
MISSING_DEVICES: Final = "missing devices"
MISSING_NETWORK: Final = "missing network"
MISSING_VOLUMES: Final = "missing compatible host volumes"

DRIVER_ATTRIBUTE_PREFIX: Final = "driver."
FEASIBLE: Final = 0
MAX_CACHED_VERDICTS: Final = 1_024
MAX_CACHED_SCREENINGS: Final = 64
MAX_REPORTED_CLASSES: Final = 200
BUILTIN_NETWORK_MODES: Final = ("", "host", "none")
TRUE_WORDS: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))

VolumeLookup = Callable[[str], HostVolume | None]


class HostPort(msgspec.Struct, frozen=True):
    """A port of the group that asks for a network of the host by name."""

    label: str
    network: str


class GroupRequirements(msgspec.Struct, frozen=True):
    """What a group asks of a node alone, in the order in which it is looked at. Equal ones have equal answers."""

    job_constraints: tuple[Constraint, ...]
    drivers: tuple[str, ...]
    constraints: tuple[Constraint, ...]
    devices: tuple[RequestedDevice, ...]
    network_mode: str
    host_ports: tuple[HostPort, ...]

    @property
    def class_requirements(self) -> "GroupRequirements":
        """Without what must be asked node by node."""
        return msgspec.structs.replace(
            self,
            job_constraints=tuple(each for each in self.job_constraints if not has_unique_target(each)),
            constraints=tuple(each for each in self.constraints if not has_unique_target(each)),
        )

    @property
    def unique_job_constraints(self) -> tuple[Constraint, ...]:
        return tuple(each for each in self.job_constraints if has_unique_target(each))

    @property
    def unique_group_constraints(self) -> tuple[Constraint, ...]:
        return tuple(each for each in self.constraints if has_unique_target(each))

    @property
    def has_unique_constraints(self) -> bool:
        return any(has_unique_target(each) for each in (*self.job_constraints, *self.constraints))


class ScreeningResult(msgspec.Struct, frozen=True):
    """The nodes that pass, by row; how many were looked at; and what each of the others lacks first."""

    feasible: Mask
    considered: Mask
    reasons: ValueCodes[str]
    reason_codes: Codes
    """By row: the number of the reason; `FINE` for those that pass, `NOWHERE` for those that were not looked at."""


def has_unique_target(constraint: Constraint) -> bool:
    return is_unique_target(constraint.l_target) or is_unique_target(constraint.r_target)


def has_unique_constraints(job: Job) -> bool:
    """Whether some constraint names what differs from node to node, so that kinds of nodes say nothing."""
    groups = job.groups
    asked = [*(job.constraints or ()), *(each for group in groups for each in group.constraints or ())]
    asked += [each for group in groups for task in group.tasks or () for each in task.constraints or ()]
    return any(has_unique_target(each) for each in asked)


def collect_requirements(job: Job, group: TaskGroup) -> GroupRequirements:
    tasks = group.tasks or ()
    own = [*(group.constraints or ()), *(each for task in tasks for each in task.constraints or ())]
    network = group.networks[0] if group.networks else None
    ports = () if network is None else (*(network.reserved_ports or ()), *(network.dynamic_ports or ()))
    return GroupRequirements(
        job_constraints=_about_nodes(job.constraints or ()),
        drivers=tuple(sorted({task.driver for task in tasks})),
        constraints=_about_nodes(own),
        devices=tuple(asked for _task, asked in list_device_requests(group)),
        network_mode="" if network is None else network.mode,
        host_ports=tuple(
            HostPort(port.label, port.host_network)
            for port in ports
            if port.host_network not in ("", DEFAULT_HOST_NETWORK)
        ),
    )


def _about_nodes(constraints: Sequence[Constraint]) -> tuple[Constraint, ...]:
    return tuple(each for each in constraints if each.operand not in CROSS_ALLOCATION_OPERANDS)


class _Verdicts:
    """What each kind of node lacks first, by the kind's number."""

    def __init__(self) -> None:
        self.reasons: ValueCodes[str] = ValueCodes()
        self.reasons.encode_value("")  # FINE
        self.codes: list[int] = []
        self.is_late: list[bool] = []
        """Whether that is looked at only after the constraints of the group."""

    def add(self, example: Node, demands: GroupRequirements) -> None:
        early = find_unmet_constraint(example, demands)
        late = "" if early else find_unmet_resource(example, demands)
        self.codes.append(self.reasons.encode_value(early or late))
        self.is_late.append(bool(late))


class FeasibilityChecker:
    """Answers for one fleet, and keeps what was answered."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._verdicts: OrderedDict[GroupRequirements, _Verdicts] = OrderedDict()
        self._screened: OrderedDict[tuple[GroupRequirements, str, tuple[str, ...]], tuple[int, ScreeningResult]] = (
            OrderedDict()
        )
        """By what is asked and where, what was found when the fleet had changed so often. Nobody changes it in place."""

    def select_ready_nodes(self, job: Job) -> Mask:
        """The nodes that take placements, in the job's pool and datacenters."""
        fleet = self._fleet
        rows = len(fleet)
        mask: Mask = fleet.is_ready[:rows].copy()
        if job.node_pool not in ("", ALL_NODE_POOL):
            mask &= fleet.pool[:rows] == fleet.pools.code_of.get(job.node_pool, MISSING_CODE)
        patterns = job.datacenters or ALL_DATACENTERS
        if "*" not in patterns and rows:
            chosen = fleet.datacenters.mask_values(lambda name: matches_datacenter(name, patterns))
            mask &= chosen[fleet.datacenter[:rows]] & (fleet.datacenter[:rows] != MISSING_CODE)
        return mask

    def screen_group(self, job: Job, group: TaskGroup, volume_of: VolumeLookup) -> ScreeningResult:
        """All nodes in the job's reach. What hangs on nothing but kinds of nodes is kept until a node changes."""
        demands = collect_requirements(job, group)
        if demands.has_unique_constraints or _host_volumes(group):
            return self.screen_nodes(self.select_ready_nodes(job), job, group, volume_of)
        key = (demands, job.node_pool, tuple(job.datacenters or ()))
        changed = self._fleet.node_revision
        found = self._screened.pop(key, None)
        if found is None or found[0] != changed:
            found = changed, self.screen_nodes(self.select_ready_nodes(job), job, group, volume_of)
            for column in (found[1].feasible, found[1].considered, found[1].reason_codes):
                column.setflags(write=False)
        self._screened[key] = found
        if len(self._screened) > MAX_CACHED_SCREENINGS:
            self._screened.popitem(last=False)
        return found[1]

    def screen_nodes(self, looked_at: Mask, job: Job, group: TaskGroup, volume_of: VolumeLookup) -> ScreeningResult:
        demands = collect_requirements(job, group)
        verdicts = self._by_kind(demands.class_requirements)
        rows = len(self._fleet)
        kinds = self._fleet.kind[:rows][looked_at]
        reasons = verdicts.reasons
        reason_of: Codes = np.full(rows, MISSING_CODE, dtype=np.int32)
        reason_of[looked_at] = np.asarray(verdicts.codes, dtype=np.int32)[kinds]
        if demands.has_unique_constraints or _host_volumes(group):
            own = ValueCodes[str]()
            own.values, own.code_of = [*reasons.values], {**reasons.code_of}
            reasons = own
            is_late: Mask = np.zeros(rows, dtype=np.bool_)
            is_late[looked_at] = np.asarray(verdicts.is_late, dtype=np.bool_)[kinds]
            self._ask_for_unique(demands.unique_job_constraints, reasons, reason_of, reason_of != MISSING_CODE)
            self._ask_for_unique(
                demands.unique_group_constraints, reasons, reason_of, (reason_of == FEASIBLE) | is_late
            )
            self._ask_for_volumes(group, reasons, reason_of, volume_of)
        return ScreeningResult(reason_of == FEASIBLE, looked_at, reasons, reason_of)

    def compute_class_eligibility(self, job: Job, groups: Iterable[TaskGroup]) -> dict[str, bool]:
        """By class of nodes, whether nodes of that class could take any of the groups if they had the room."""
        eligible: dict[str, bool] = {}
        for group in groups:
            verdicts = self._by_kind(collect_requirements(job, group).class_requirements)
            for kind, example in enumerate(self._fleet.kind_examples):
                able = verdicts.codes[kind] == FEASIBLE and is_in_pool_and_datacenter(job, example)
                eligible[example.computed_class] = eligible.get(example.computed_class, False) or able
        eligible.pop("", None)
        # What is not told counts as able: where there are very many kinds, only some that are not are told.
        return eligible if len(eligible) <= MAX_REPORTED_CLASSES else dict(
            [(name, able) for name, able in eligible.items() if not able][:MAX_REPORTED_CLASSES]
        )  # fmt: skip

    def _by_kind(self, demands: GroupRequirements) -> "_Verdicts":
        found = self._verdicts.get(demands)
        if found is None:
            found = self._verdicts[demands] = _Verdicts()
            if len(self._verdicts) > MAX_CACHED_VERDICTS:
                self._verdicts.popitem(last=False)
        else:
            self._verdicts.move_to_end(demands)
        for example in self._fleet.kind_examples[len(found.codes) :]:
            found.add(example, demands)
        return found

    def _ask_for_unique(
        self, constraints: Sequence[Constraint], reasons: ValueCodes[str], reason_of: Codes, asked: Mask
    ) -> None:
        """Of the rows that are asked: those that lack one of these lack that first."""
        for constraint in constraints:
            code = reasons.encode_value(str(constraint))
            lacks = asked & ~self._satisfying(constraint, asked)
            reason_of[lacks] = code
            asked = asked & ~lacks

    def _satisfying(self, constraint: Constraint, asked: Mask) -> Mask:
        if is_variable_target(constraint.r_target):
            found: Mask = np.zeros(len(asked), dtype=np.bool_)
            for row in np.flatnonzero(asked):
                found[row] = satisfies_constraint(self._fleet.get_node(int(row)), constraint)
            return found
        # One answer for each value that the property has, and one for nodes that do not have it (the last).
        column = self._fleet.get_property_column(constraint.l_target)
        operand, right = constraint.operand, constraint.r_target
        answers = [evaluate_comparison(operand, value, right) for value in (*column.words.values, None)]
        by_row: Mask = np.asarray(answers, dtype=np.bool_)[column.codes[: len(asked)]]
        return by_row

    def _ask_for_volumes(
        self, group: TaskGroup, reasons: ValueCodes[str], reason_of: Codes, volume_of: VolumeLookup
    ) -> None:
        asked = _host_volumes(group)
        if not asked:
            return
        code = reasons.encode_value(MISSING_VOLUMES)
        for row in np.flatnonzero(reason_of == FEASIBLE):
            node = self._fleet.get_node(int(row))
            if not all(_has_volume(node, request, volume_of) for request in asked):
                reason_of[row] = code


def satisfies_constraint(node: Node, constraint: Constraint) -> bool:
    return evaluate_comparison(
        constraint.operand, resolve_target(constraint.l_target, node), resolve_target(constraint.r_target, node)
    )


def find_unmet_constraint(node: Node, demands: GroupRequirements) -> str:
    """The first of the constraints and drivers that the node lacks, in the reference's order; empty: nothing."""
    for constraint in demands.job_constraints:
        if not satisfies_constraint(node, constraint):
            return str(constraint)
    if not all(has_healthy_driver(node, driver) for driver in demands.drivers):
        return MISSING_DRIVERS
    for constraint in demands.constraints:
        if not satisfies_constraint(node, constraint):
            return str(constraint)
    return ""


def find_unmet_resource(node: Node, demands: GroupRequirements) -> str:
    """The same of what is looked at after them."""
    if demands.devices and not has_enough_devices(node, demands.devices):
        return MISSING_DEVICES
    return _lack_of_network(node, demands)


def has_healthy_driver(node: Node, driver: str) -> bool:
    info = (node.drivers or {}).get(driver)
    if info is not None:
        return info.detected and info.healthy
    return (node.attributes or {}).get(f"{DRIVER_ATTRIBUTE_PREFIX}{driver}", "") in TRUE_WORDS


def iter_healthy_drivers(node: Node) -> Iterator[str]:
    """Those that work."""
    named = (
        key.removeprefix(DRIVER_ATTRIBUTE_PREFIX)
        for key in node.attributes or ()
        if key.startswith(DRIVER_ATTRIBUTE_PREFIX) and key.count(".") == 1
    )
    for driver in {*(node.drivers or ()), *named}:
        if has_healthy_driver(node, driver):
            yield driver


def list_network_names(nodes: Iterable[Node]) -> tuple[list[str], list[str]]:
    """The modes of networks that there are, and the names that networks of hosts have."""
    modes, names = {"host", "none"}, {DEFAULT_HOST_NETWORK}
    for node in nodes:
        networks = (node.node_resources.node_networks if node.node_resources is not None else None) or ()
        modes |= {network.mode for network in networks if network.mode}
        names |= {address.alias for network in networks for address in network.addresses or () if address.alias}
        names.update(node.host_networks or ())
    return sorted(modes), sorted(names)


def _lack_of_network(node: Node, demands: GroupRequirements) -> str:
    networks = (node.node_resources.node_networks if node.node_resources is not None else None) or ()
    if demands.network_mode not in BUILTIN_NETWORK_MODES and all(
        each.mode != demands.network_mode for each in networks
    ):
        return MISSING_NETWORK
    aliases = {address.alias for network in networks for address in network.addresses or ()}
    aliases.update(node.host_networks or ())
    for port in demands.host_ports:
        name = resolve_target(port.network, node)
        if name is None:
            return f'invalid host network "{port.network}" template for port "{port.label}"'
        if name != DEFAULT_HOST_NETWORK and name not in aliases:
            return f'missing host network "{name}" for port "{port.label}"'
    return ""


def _host_volumes(group: TaskGroup) -> list[VolumeRequest]:
    return [request for request in (group.volumes or {}).values() if request.type == VolumeType.HOST]


def _has_volume(node: Node, request: VolumeRequest, volume_of: VolumeLookup) -> bool:
    volumes = node.host_volumes or {}
    if request.per_alloc:
        # Which of them is decided with the allocation's name; here it is enough that the node has one of the row.
        return any(name.startswith(f"{request.source}[") for name in volumes)
    found = volumes.get(request.source)
    if found is None:
        return False
    if not found.id:
        return not request.sticky and (request.read_only or not found.read_only)
    volume = volume_of(found.id)
    return volume is not None and volume.state is HostVolumeState.READY and _may_use(volume, request)


def make_volume_check(group: TaskGroup, volume_of: VolumeLookup) -> Callable[[Node, int], bool] | None:
    """Whether a node has what the allocation of an index asks for by its index; None: the group asks for nothing so."""
    asked = [request for request in _host_volumes(group) if request.per_alloc]
    if not asked:
        return None

    def has_volumes(node: Node, index: int) -> bool:
        named = [msgspec.structs.replace(each, source=f"{each.source}[{index}]", per_alloc=False) for each in asked]
        return all(_has_volume(node, each, volume_of) for each in named)

    return has_volumes


def _may_use(volume: HostVolume, request: VolumeRequest) -> bool:
    implied = AccessMode.SINGLE_NODE_READER if request.read_only else AccessMode.SINGLE_NODE_WRITER
    access = request.access_mode or implied
    attachment = request.attachment_mode or AttachmentMode.FILE_SYSTEM
    if (access == AccessMode.SINGLE_NODE_READER) != request.read_only:
        return False
    offered = volume.requested_capabilities or ()
    return any(each.access_mode == access and each.attachment_mode == attachment for each in offered)
