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

from wharf.model.group import TaskGroup
from wharf.model.host_volume import HostVolume, HostVolumeState
from wharf.model.job import ALL_NODE_POOL, Job
from wharf.model.network import DEFAULT_HOST_NETWORK
from wharf.model.node import Node
from wharf.model.placement import Constraint
from wharf.model.resources import RequestedDevice
from wharf.model.volume import AccessMode, AttachmentMode, VolumeRequest, VolumeType
from wharf.scheduling.columns import Codes, Mask, Words
from wharf.scheduling.devices import asked_devices, has_enough
from wharf.scheduling.fleet import NOWHERE, Fleet
from wharf.scheduling.operands import LOOKED_AT_LATER, holds
from wharf.scheduling.reach import EVERYWHERE, is_datacenter_named, is_in_reach
from wharf.scheduling.targets import is_unique, is_variable, resolve

MISSING_DRIVERS: Final = "missing drivers"
MISSING_DEVICES: Final = "missing devices"
MISSING_NETWORK: Final = "missing network"
MISSING_VOLUMES: Final = "missing compatible host volumes"

DRIVER: Final = "driver."
FINE: Final = 0
VERDICTS_KEPT: Final = 1_024
SCREENED_KEPT: Final = 64
CLASSES_TOLD: Final = 200
ALWAYS_THERE: Final = ("", "host", "none")
TRUE_WORDS: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))

VolumeOf = Callable[[str], HostVolume | None]


class HostPort(msgspec.Struct, frozen=True):
    """A port of the group that asks for a network of the host by name."""

    label: str
    network: str


class Demands(msgspec.Struct, frozen=True):
    """What a group asks of a node alone, in the order in which it is looked at. Equal ones have equal answers."""

    job_constraints: tuple[Constraint, ...]
    drivers: tuple[str, ...]
    constraints: tuple[Constraint, ...]
    devices: tuple[RequestedDevice, ...]
    network_mode: str
    host_ports: tuple[HostPort, ...]

    @property
    def by_kind(self) -> "Demands":
        """Without what must be asked node by node."""
        return msgspec.structs.replace(
            self,
            job_constraints=tuple(each for each in self.job_constraints if not names_unique(each)),
            constraints=tuple(each for each in self.constraints if not names_unique(each)),
        )

    @property
    def unique_to_the_job(self) -> tuple[Constraint, ...]:
        return tuple(each for each in self.job_constraints if names_unique(each))

    @property
    def unique_to_the_group(self) -> tuple[Constraint, ...]:
        return tuple(each for each in self.constraints if names_unique(each))

    @property
    def has_unique(self) -> bool:
        return any(names_unique(each) for each in (*self.job_constraints, *self.constraints))


class Screened(msgspec.Struct, frozen=True):
    """The nodes that pass, by row; how many were looked at; and what each of the others lacks first."""

    passing: Mask
    looked_at: Mask
    reasons: Words[str]
    reason_of: Codes
    """By row: the number of the reason; `FINE` for those that pass, `NOWHERE` for those that were not looked at."""


def names_unique(constraint: Constraint) -> bool:
    return is_unique(constraint.l_target) or is_unique(constraint.r_target)


def has_escaped(job: Job) -> bool:
    """Whether some constraint names what differs from node to node, so that kinds of nodes say nothing."""
    groups = job.groups
    asked = [*(job.constraints or ()), *(each for group in groups for each in group.constraints or ())]
    asked += [each for group in groups for task in group.tasks or () for each in task.constraints or ()]
    return any(names_unique(each) for each in asked)


def demands_of(job: Job, group: TaskGroup) -> Demands:
    tasks = group.tasks or ()
    own = [*(group.constraints or ()), *(each for task in tasks for each in task.constraints or ())]
    network = group.networks[0] if group.networks else None
    ports = () if network is None else (*(network.reserved_ports or ()), *(network.dynamic_ports or ()))
    return Demands(
        job_constraints=_about_nodes(job.constraints or ()),
        drivers=tuple(sorted({task.driver for task in tasks})),
        constraints=_about_nodes(own),
        devices=tuple(asked for _task, asked in asked_devices(group)),
        network_mode="" if network is None else network.mode,
        host_ports=tuple(
            HostPort(port.label, port.host_network)
            for port in ports
            if port.host_network not in ("", DEFAULT_HOST_NETWORK)
        ),
    )


def _about_nodes(constraints: Sequence[Constraint]) -> tuple[Constraint, ...]:
    return tuple(each for each in constraints if each.operand not in LOOKED_AT_LATER)


class _Verdicts:
    """What each kind of node lacks first, by the kind's number."""

    def __init__(self) -> None:
        self.reasons: Words[str] = Words()
        self.reasons.code("")  # FINE
        self.codes: list[int] = []
        self.is_late: list[bool] = []
        """Whether that is looked at only after the constraints of the group."""

    def add(self, example: Node, demands: Demands) -> None:
        early = first_lack(example, demands)
        late = "" if early else late_lack(example, demands)
        self.codes.append(self.reasons.code(early or late))
        self.is_late.append(bool(late))


class Feasibility:
    """Answers for one fleet, and keeps what was answered."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._verdicts: OrderedDict[Demands, _Verdicts] = OrderedDict()
        self._screened: OrderedDict[tuple[Demands, str, tuple[str, ...]], tuple[int, Screened]] = OrderedDict()
        """By what is asked and where, what was found when the fleet had changed so often. Nobody changes it in place."""

    def in_reach(self, job: Job) -> Mask:
        """The nodes that take placements, in the job's pool and datacenters."""
        fleet = self._fleet
        rows = len(fleet)
        mask: Mask = fleet.is_ready[:rows].copy()
        if job.node_pool not in ("", ALL_NODE_POOL):
            mask &= fleet.pool[:rows] == fleet.pools.code_of.get(job.node_pool, NOWHERE)
        patterns = job.datacenters or EVERYWHERE
        if "*" not in patterns and rows:
            chosen = fleet.datacenters.chosen(lambda name: is_datacenter_named(name, patterns))
            mask &= chosen[fleet.datacenter[:rows]] & (fleet.datacenter[:rows] != NOWHERE)
        return mask

    def screened(self, job: Job, group: TaskGroup, volume_of: VolumeOf) -> Screened:
        """All nodes in the job's reach. What hangs on nothing but kinds of nodes is kept until a node changes."""
        demands = demands_of(job, group)
        if demands.has_unique or _host_volumes(group):
            return self.screen(self.in_reach(job), job, group, volume_of)
        key = (demands, job.node_pool, tuple(job.datacenters or ()))
        changed = self._fleet.changed
        found = self._screened.pop(key, None)
        if found is None or found[0] != changed:
            found = changed, self.screen(self.in_reach(job), job, group, volume_of)
            for column in (found[1].passing, found[1].looked_at, found[1].reason_of):
                column.setflags(write=False)
        self._screened[key] = found
        if len(self._screened) > SCREENED_KEPT:
            self._screened.popitem(last=False)
        return found[1]

    def screen(self, looked_at: Mask, job: Job, group: TaskGroup, volume_of: VolumeOf) -> Screened:
        demands = demands_of(job, group)
        verdicts = self._by_kind(demands.by_kind)
        rows = len(self._fleet)
        kinds = self._fleet.kind[:rows][looked_at]
        reasons = verdicts.reasons
        reason_of: Codes = np.full(rows, NOWHERE, dtype=np.int32)
        reason_of[looked_at] = np.asarray(verdicts.codes, dtype=np.int32)[kinds]
        if demands.has_unique or _host_volumes(group):
            own = Words[str]()
            own.values, own.code_of = [*reasons.values], {**reasons.code_of}
            reasons = own
            is_late: Mask = np.zeros(rows, dtype=np.bool_)
            is_late[looked_at] = np.asarray(verdicts.is_late, dtype=np.bool_)[kinds]
            self._ask_for_unique(demands.unique_to_the_job, reasons, reason_of, reason_of != NOWHERE)
            self._ask_for_unique(demands.unique_to_the_group, reasons, reason_of, (reason_of == FINE) | is_late)
            self._ask_for_volumes(group, reasons, reason_of, volume_of)
        return Screened(reason_of == FINE, looked_at, reasons, reason_of)

    def eligibility(self, job: Job, groups: Iterable[TaskGroup]) -> dict[str, bool]:
        """By class of nodes, whether nodes of that class could take any of the groups if they had the room."""
        eligible: dict[str, bool] = {}
        for group in groups:
            verdicts = self._by_kind(demands_of(job, group).by_kind)
            for kind, example in enumerate(self._fleet.kind_examples):
                able = verdicts.codes[kind] == FINE and is_in_reach(job, example)
                eligible[example.computed_class] = eligible.get(example.computed_class, False) or able
        eligible.pop("", None)
        # What is not told counts as able: where there are very many kinds, only some that are not are told.
        return eligible if len(eligible) <= CLASSES_TOLD else dict(
            [(name, able) for name, able in eligible.items() if not able][:CLASSES_TOLD]
        )  # fmt: skip

    def _by_kind(self, demands: Demands) -> "_Verdicts":
        found = self._verdicts.get(demands)
        if found is None:
            found = self._verdicts[demands] = _Verdicts()
            if len(self._verdicts) > VERDICTS_KEPT:
                self._verdicts.popitem(last=False)
        else:
            self._verdicts.move_to_end(demands)
        for example in self._fleet.kind_examples[len(found.codes) :]:
            found.add(example, demands)
        return found

    def _ask_for_unique(
        self, constraints: Sequence[Constraint], reasons: Words[str], reason_of: Codes, asked: Mask
    ) -> None:
        """Of the rows that are asked: those that lack one of these lack that first."""
        for constraint in constraints:
            code = reasons.code(str(constraint))
            lacks = asked & ~self._satisfying(constraint, asked)
            reason_of[lacks] = code
            asked = asked & ~lacks

    def _satisfying(self, constraint: Constraint, asked: Mask) -> Mask:
        if is_variable(constraint.r_target):
            found: Mask = np.zeros(len(asked), dtype=np.bool_)
            for row in np.flatnonzero(asked):
                found[row] = satisfies(self._fleet.node(int(row)), constraint)
            return found
        # One answer for each value that the property has, and one for nodes that do not have it (the last).
        column = self._fleet.property(constraint.l_target)
        operand, right = constraint.operand, constraint.r_target
        answers = [holds(operand, value, right) for value in (*column.words.values, None)]
        by_row: Mask = np.asarray(answers, dtype=np.bool_)[column.codes[: len(asked)]]
        return by_row

    def _ask_for_volumes(self, group: TaskGroup, reasons: Words[str], reason_of: Codes, volume_of: VolumeOf) -> None:
        asked = _host_volumes(group)
        if not asked:
            return
        code = reasons.code(MISSING_VOLUMES)
        for row in np.flatnonzero(reason_of == FINE):
            node = self._fleet.node(int(row))
            if not all(_has_volume(node, request, volume_of) for request in asked):
                reason_of[row] = code


def satisfies(node: Node, constraint: Constraint) -> bool:
    return holds(constraint.operand, resolve(constraint.l_target, node), resolve(constraint.r_target, node))


def first_lack(node: Node, demands: Demands) -> str:
    """The first of the constraints and drivers that the node lacks, in the reference's order; empty: nothing."""
    for constraint in demands.job_constraints:
        if not satisfies(node, constraint):
            return str(constraint)
    if not all(has_driver(node, driver) for driver in demands.drivers):
        return MISSING_DRIVERS
    for constraint in demands.constraints:
        if not satisfies(node, constraint):
            return str(constraint)
    return ""


def late_lack(node: Node, demands: Demands) -> str:
    """The same of what is looked at after them."""
    if demands.devices and not has_enough(node, demands.devices):
        return MISSING_DEVICES
    return _lack_of_network(node, demands)


def has_driver(node: Node, driver: str) -> bool:
    info = (node.drivers or {}).get(driver)
    if info is not None:
        return info.detected and info.healthy
    return (node.attributes or {}).get(f"{DRIVER}{driver}", "") in TRUE_WORDS


def drivers_of(node: Node) -> Iterator[str]:
    """Those that work."""
    named = (
        key.removeprefix(DRIVER) for key in node.attributes or () if key.startswith(DRIVER) and key.count(".") == 1
    )
    for driver in {*(node.drivers or ()), *named}:
        if has_driver(node, driver):
            yield driver


def networks_of(nodes: Iterable[Node]) -> tuple[list[str], list[str]]:
    """The modes of networks that there are, and the names that networks of hosts have."""
    modes, names = {"host", "none"}, {DEFAULT_HOST_NETWORK}
    for node in nodes:
        networks = (node.node_resources.node_networks if node.node_resources is not None else None) or ()
        modes |= {network.mode for network in networks if network.mode}
        names |= {address.alias for network in networks for address in network.addresses or () if address.alias}
        names.update(node.host_networks or ())
    return sorted(modes), sorted(names)


def _lack_of_network(node: Node, demands: Demands) -> str:
    networks = (node.node_resources.node_networks if node.node_resources is not None else None) or ()
    if demands.network_mode not in ALWAYS_THERE and all(each.mode != demands.network_mode for each in networks):
        return MISSING_NETWORK
    aliases = {address.alias for network in networks for address in network.addresses or ()}
    aliases.update(node.host_networks or ())
    for port in demands.host_ports:
        name = resolve(port.network, node)
        if name is None:
            return f'invalid host network "{port.network}" template for port "{port.label}"'
        if name != DEFAULT_HOST_NETWORK and name not in aliases:
            return f'missing host network "{name}" for port "{port.label}"'
    return ""


def _host_volumes(group: TaskGroup) -> list[VolumeRequest]:
    return [request for request in (group.volumes or {}).values() if request.type == VolumeType.HOST]


def _has_volume(node: Node, request: VolumeRequest, volume_of: VolumeOf) -> bool:
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


def volumes_by_index(group: TaskGroup, volume_of: VolumeOf) -> Callable[[Node, int], bool] | None:
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
