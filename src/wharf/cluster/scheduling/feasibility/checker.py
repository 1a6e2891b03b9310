"""Finds the nodes that can run a group, and why each other node cannot. Only the node itself is checked.

Nodes of one kind have equal attributes, drivers and devices, so all checks of such properties have the same result for
them. Each check runs once for each node kind, and results are cached between evaluations. Only constraints on unique
attributes, such as the name of a node, and host volumes are checked node by node. Checks that depend on other
allocations (ports, distinct hosts, free resources) follow when a node is chosen.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from wharf.cluster.scheduling.constraints import (
    CROSS_ALLOCATION_OPERANDS,
    evaluate_comparison,
    is_unique_target,
    is_variable_target,
    list_group_constraints,
    resolve_target,
    satisfies_constraint,
)
from wharf.cluster.scheduling.feasibility.location import ALL_DATACENTERS, is_in_pool_and_datacenter, matches_datacenter
from wharf.cluster.scheduling.feasibility.volumes import VolumeLookup, has_volume, list_host_volume_requests
from wharf.cluster.scheduling.fleet.columns import Codes, Mask, ValueCodes
from wharf.cluster.scheduling.fleet.fleet import MISSING_CODE, Fleet
from wharf.cluster.scheduling.resources.devices import has_enough_devices, list_device_requests
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.jobs.constraints import Affinity, Constraint
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.networks import DEFAULT_HOST_NETWORK
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.node_pools import ALL_NODE_POOL
from wharf.contract.model.nodes.node import Node

# Reasons why a node is not feasible, as metrics show them.
MISSING_DRIVERS: Final = "missing drivers"
MISSING_DEVICES: Final = "missing devices"
MISSING_NETWORK: Final = "missing network"
MISSING_VOLUMES: Final = "missing compatible host volumes"

DRIVER_ATTRIBUTE_PREFIX: Final = "driver."
"""Older nodes report their drivers as attributes with this prefix."""
FEASIBLE: Final = 0
"""The reason code of feasible nodes, for which no requirement is unmet."""
MAX_CACHED_REQUIREMENTS: Final = 1_024
"""Limits memory: the results of all node kinds are cached for this many different group requirements."""
MAX_CACHED_SCREENINGS: Final = 64
"""Limits memory: how many complete screening results (one entry for each node) are cached."""
MAX_REPORTED_CLASSES: Final = 200
"""Limits the size of an evaluation: the number of node classes whose eligibility it stores."""
MAX_DRIVER_REASON_CHARS: Final = 200
"""Limits the size of an explanation: how much of a node's own reason is repeated."""
BUILTIN_NETWORK_MODES: Final = ("", "host", "none")
"""Network modes that every node offers."""
TRUE_WORDS: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))
"""Attribute values that count as true."""


class HostPort(msgspec.Struct, frozen=True):
    """A port of a group that requests a host network by name."""

    label: str
    """The name of the port in the job."""
    network: str
    """The name of the host network; it may be a reference such as `${meta.network}`."""


class GroupRequirements(msgspec.Struct, frozen=True):
    """What a group requires of a node itself, independent of other allocations and of free resources.

    Fields are in the order of the checks. Groups with equal requirements share cached results.
    """

    job_constraints: tuple[Constraint, ...]
    """The constraints of the job, without distinct constraints, which depend on other allocations."""
    drivers: tuple[str, ...]
    """The names of the task drivers, sorted."""
    constraints: tuple[Constraint, ...]
    """The constraints of the group and its tasks, without distinct constraints."""
    devices: tuple[RequestedDevice, ...]
    network_mode: str
    """The mode of the group's network, such as `host` or `bridge`. Empty: the group has no network."""
    host_ports: tuple[HostPort, ...]
    """The ports that request a host network other than the default one."""

    @property
    def class_requirements(self) -> "GroupRequirements":
        """The requirements without constraints on unique attributes, which differ from node to node.

        Nodes of one kind (with equal other attributes, drivers and devices) either all meet them, or none does.
        """
        return msgspec.structs.replace(
            self,
            job_constraints=tuple(
                constraint for constraint in self.job_constraints if not has_unique_target(constraint)
            ),
            constraints=tuple(constraint for constraint in self.constraints if not has_unique_target(constraint)),
        )

    @property
    def unique_job_constraints(self) -> tuple[Constraint, ...]:
        """The job's constraints on attributes that differ from node to node, such as the node's name."""
        return tuple(constraint for constraint in self.job_constraints if has_unique_target(constraint))

    @property
    def unique_group_constraints(self) -> tuple[Constraint, ...]:
        """The group's and tasks' constraints on attributes that differ from node to node, such as the node's name."""
        return tuple(constraint for constraint in self.constraints if has_unique_target(constraint))

    @property
    def has_unique_constraints(self) -> bool:
        """Whether any constraint refers to an attribute that differs from node to node, such as the node's name."""
        return any(has_unique_target(constraint) for constraint in (*self.job_constraints, *self.constraints))


class ScreeningResult(msgspec.Struct, eq=False):
    """The result of a feasibility check of nodes for one group, as columns with one entry for each fleet row.

    It is valid while no node of the fleet changes, for jobs of one node pool. Only `metric` may be set later.
    """

    feasible: Mask
    """Whether the node meets all requirements of the group."""
    considered: Mask
    """Whether the node was checked."""
    reasons: ValueCodes[str]
    """Reason texts and their codes. A reason is the first requirement that a node does not meet."""
    reason_codes: Codes
    """The code of the reason. `FEASIBLE`: the node meets all requirements. `MISSING_CODE`: it was not checked."""
    metric: AllocMetric | None = None
    """The counts of this result, as `ranking.metrics` builds them on first use."""


def has_unique_target(constraint: Constraint | Affinity) -> bool:
    """Return whether the constraint or affinity refers to an attribute that differs from node to node, such as the name."""
    return is_unique_target(constraint.l_target) or is_unique_target(constraint.r_target)


def has_unique_constraints(job: Job) -> bool:
    """Return whether a constraint in the job refers to an attribute that differs from node to node.

    Constraints of groups and tasks count, too. If so, the class of a node does not decide whether the node is eligible.
    """
    group_constraints = (constraint for group in job.groups for constraint in list_group_constraints(group))
    return any(map(has_unique_target, (*(job.constraints or ()), *group_constraints)))


def collect_requirements(job: Job, group: TaskGroup) -> GroupRequirements:
    """Return what the group requires of a node itself, without requirements on free resources or other allocations."""
    tasks = group.tasks or ()
    network = group.networks[0] if group.networks else None
    ports = () if network is None else (*(network.reserved_ports or ()), *(network.dynamic_ports or ()))
    return GroupRequirements(
        job_constraints=_select_node_constraints(job.constraints or ()),
        drivers=tuple(sorted({task.driver for task in tasks})),
        constraints=_select_node_constraints(list_group_constraints(group)),
        devices=tuple(request for _task, request in list_device_requests(group)),
        network_mode="" if network is None else network.mode,
        host_ports=tuple(
            HostPort(port.label, port.host_network)
            for port in ports
            if port.host_network not in ("", DEFAULT_HOST_NETWORK)
        ),
    )


def _select_node_constraints(constraints: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """Return the constraints that depend on the node alone: all except `distinct_hosts` and `distinct_property`."""
    return tuple(constraint for constraint in constraints if constraint.operand not in CROSS_ALLOCATION_OPERANDS)


class _KindResults:
    """For one set of requirements, the first one that each node kind does not meet, indexed by the number of the kind.

    A node kind is a set of nodes with equal attributes, drivers and devices.
    """

    def __init__(self) -> None:
        self.reasons: ValueCodes[str] = ValueCodes()
        """The texts of unmet requirements, with their codes."""
        self.reasons.encode_value("")  # An empty text gets the code FEASIBLE.
        self.codes: list[int] = []
        """The code of the reason."""
        self.lacks_resource: list[bool] = []
        """Whether the reason is a missing device or network, which is checked after the constraints of the group."""

    def add_kind(self, example: Node, requirements: GroupRequirements) -> None:
        """Check one node as the example of a new kind (nodes with equal attributes), and append the result."""
        constraint = find_unmet_constraint(example, requirements)
        resource = "" if constraint else find_unmet_resource(example, requirements)
        self.codes.append(self.reasons.encode_value(constraint or resource))
        self.lacks_resource.append(bool(resource))


class FeasibilityChecker:
    """Checks which nodes of the fleet are feasible for a group, and caches the results."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._kind_results: OrderedDict[GroupRequirements, _KindResults] = OrderedDict()
        """Results by requirements without constraints on unique attributes. Those used last are at the end."""
        self._cached_screenings: OrderedDict[
            tuple[GroupRequirements, str, tuple[str, ...]], tuple[int, ScreeningResult]
        ] = OrderedDict()
        """Screening results by requirements, node pool and datacenters, each with the node revision of the fleet.

        A result is valid while the fleet has this node revision. Its columns are read-only.
        """

    def select_ready_nodes(self, job: Job) -> Mask:
        """Return a mask of fleet rows: the nodes in the job's node pool and datacenters that accept placements."""
        fleet = self._fleet
        rows = len(fleet)
        mask: Mask = fleet.is_ready[:rows].copy()
        if job.node_pool not in ("", ALL_NODE_POOL):
            mask &= fleet.pool[:rows] == fleet.pools.code_by_value.get(job.node_pool, MISSING_CODE)
        patterns = job.datacenters or ALL_DATACENTERS
        if "*" not in patterns and rows:
            chosen = fleet.datacenters.mask_values(lambda name: matches_datacenter(name, patterns))
            mask &= chosen[fleet.datacenter[:rows]] & (fleet.datacenter[:rows] != MISSING_CODE)
        return mask

    def screen_group(self, job: Job, group: TaskGroup, find_volume: VolumeLookup) -> ScreeningResult:
        """Return which ready nodes in the job's pool and datacenters are feasible, and why the others are not.

        The result is cached until a node changes. It is not cached if the group has constraints on unique attributes or
        host volumes, which are checked node by node.
        """
        requirements = collect_requirements(job, group)
        if requirements.has_unique_constraints or list_host_volume_requests(group):
            return self.screen_nodes(self.select_ready_nodes(job), job, group, find_volume)
        key = (requirements, job.node_pool, tuple(job.datacenters or ()))
        revision = self._fleet.node_revision
        cached = self._cached_screenings.pop(key, None)
        if cached is None or cached[0] != revision:
            cached = revision, self.screen_nodes(self.select_ready_nodes(job), job, group, find_volume)
            for column in (cached[1].feasible, cached[1].considered, cached[1].reason_codes):
                column.setflags(write=False)
        self._cached_screenings[key] = cached
        if len(self._cached_screenings) > MAX_CACHED_SCREENINGS:
            self._cached_screenings.popitem(last=False)
        return cached[1]

    def screen_nodes(self, considered: Mask, job: Job, group: TaskGroup, find_volume: VolumeLookup) -> ScreeningResult:
        """Return which of the nodes in the mask `considered` are feasible for the group, and why others are not.

        First, each node gets the cached result of its kind (nodes with equal attributes, drivers and devices). Then
        constraints on unique attributes and host volumes are checked node by node. The reason is always the first unmet
        requirement in Nomad's order: constraints of the job, drivers, constraints of the group, devices and networks,
        volumes.
        """
        requirements = collect_requirements(job, group)
        results = self._get_kind_results(requirements.class_requirements)
        rows = len(self._fleet)
        kinds = self._fleet.kind[:rows][considered]
        reasons = results.reasons
        reason_codes: Codes = np.full(rows, MISSING_CODE, dtype=np.int32)
        reason_codes[considered] = np.asarray(results.codes, dtype=np.int32)[kinds]
        if requirements.has_unique_constraints or list_host_volume_requests(group):
            own_reasons = ValueCodes[str]()
            own_reasons.values, own_reasons.code_by_value = [*reasons.values], {**reasons.code_by_value}
            reasons = own_reasons
            lacks_resource: Mask = np.zeros(rows, dtype=np.bool_)
            lacks_resource[considered] = np.asarray(results.lacks_resource, dtype=np.bool_)[kinds]
            self._apply_unique_constraints(
                requirements.unique_job_constraints, reasons, reason_codes, reason_codes != MISSING_CODE
            )
            self._apply_unique_constraints(
                requirements.unique_group_constraints,
                reasons,
                reason_codes,
                (reason_codes == FEASIBLE) | lacks_resource,
            )
            self._apply_volume_requests(group, reasons, reason_codes, find_volume)
        return ScreeningResult(reason_codes == FEASIBLE, considered, reasons, reason_codes)

    def compute_class_eligibility(self, job: Job, groups: Iterable[TaskGroup]) -> dict[str, bool]:
        """Return by computed node class whether its nodes could run one of the groups if enough resources were free.

        The computed class is a text that nodes report; nodes of one class satisfy the same constraints. If there are
        more than `MAX_REPORTED_CLASSES` classes, only classes that cannot run any group are listed, up to this number.
        """
        eligible: dict[str, bool] = {}
        for group in groups:
            results = self._get_kind_results(collect_requirements(job, group).class_requirements)
            for kind, example in enumerate(self._fleet.kind_examples):
                is_eligible = results.codes[kind] == FEASIBLE and is_in_pool_and_datacenter(job, example)
                eligible[example.computed_class] = eligible.get(example.computed_class, False) or is_eligible
        eligible.pop("", None)
        # A class that is not listed counts as eligible. If there are too many classes, list only ineligible ones.
        return eligible if len(eligible) <= MAX_REPORTED_CLASSES else dict(
            [(name, is_eligible) for name, is_eligible in eligible.items() if not is_eligible][:MAX_REPORTED_CLASSES]
        )  # fmt: skip

    def _get_kind_results(self, requirements: GroupRequirements) -> "_KindResults":
        """Return for each node kind the first of these requirements that it does not meet. The results are cached.

        Nodes of one kind have equal attributes, drivers and devices. Kinds without a result are checked now.
        """
        results = self._kind_results.get(requirements)
        if results is None:
            results = self._kind_results[requirements] = _KindResults()
            if len(self._kind_results) > MAX_CACHED_REQUIREMENTS:
                self._kind_results.popitem(last=False)
        else:
            self._kind_results.move_to_end(requirements)
        for example in self._fleet.kind_examples[len(results.codes) :]:
            results.add_kind(example, requirements)
        return results

    def _apply_unique_constraints(
        self, constraints: Sequence[Constraint], reasons: ValueCodes[str], reason_codes: Codes, remaining: Mask
    ) -> None:
        """Check constraints on unique attributes for the nodes whose rows are in the mask `remaining`.

        For each node that fails, the code of the first failed constraint is stored in `reason_codes`. The texts of the
        constraints are added to `reasons`.
        """
        for constraint in constraints:
            code = reasons.encode_value(str(constraint))
            fails = remaining & ~self._mask_satisfying(constraint, remaining)
            reason_codes[fails] = code
            remaining = remaining & ~fails

    def _mask_satisfying(self, constraint: Constraint, mask: Mask) -> Mask:
        """Return the mask of the rows whose nodes satisfy the constraint. It is valid only for rows in `mask`.

        If only the left side refers to the node, the constraint is evaluated once for each different value. If both
        sides do, it is evaluated for each node.
        """
        if is_variable_target(constraint.r_target):
            satisfied: Mask = np.zeros(len(mask), dtype=np.bool_)
            for row in np.flatnonzero(mask):
                satisfied[row] = satisfies_constraint(self._fleet.get_node(int(row)), constraint)
            return satisfied
        # One result per value of the attribute, and one for nodes without the attribute (the last).
        column = self._fleet.get_property_column(constraint.l_target)
        operand, right = constraint.operand, constraint.r_target
        results = [evaluate_comparison(operand, value, right) for value in (*column.values.values, None)]
        by_row: Mask = np.asarray(results, dtype=np.bool_)[column.codes[: len(mask)]]
        return by_row

    def _apply_volume_requests(
        self, group: TaskGroup, reasons: ValueCodes[str], reason_codes: Codes, find_volume: VolumeLookup
    ) -> None:
        """Store `MISSING_VOLUMES` in `reason_codes` for feasible nodes that lack a host volume of the group."""
        requests = list_host_volume_requests(group)
        if not requests:
            return
        code = reasons.encode_value(MISSING_VOLUMES)
        for row in np.flatnonzero(reason_codes == FEASIBLE):
            node = self._fleet.get_node(int(row))
            if not all(has_volume(node, request, find_volume) for request in requests):
                reason_codes[row] = code


def find_unmet_constraint(node: Node, requirements: GroupRequirements) -> str:
    """Return why the constraints or drivers exclude the node: the first unmet requirement, or an empty text.

    The order is Nomad's: constraints of the job, drivers, constraints of the group and its tasks.
    """
    for constraint in requirements.job_constraints:
        if not satisfies_constraint(node, constraint):
            return str(constraint)
    if not all(has_healthy_driver(node, driver) for driver in requirements.drivers):
        return MISSING_DRIVERS
    for constraint in requirements.constraints:
        if not satisfies_constraint(node, constraint):
            return str(constraint)
    return ""


def find_unmet_resource(node: Node, requirements: GroupRequirements) -> str:
    """Return why the devices or networks of the node do not suffice, or an empty text. Devices are checked first.

    Whether devices are in use does not matter.
    """
    if requirements.devices and not has_enough_devices(node, requirements.devices):
        return MISSING_DEVICES
    return _find_missing_network(node, requirements)


def has_healthy_driver(node: Node, driver: str) -> bool:
    """Return whether the node has detected this task driver and reports it as healthy."""
    info = (node.drivers or {}).get(driver)
    if info is not None:
        return info.detected and info.healthy
    return (node.attributes or {}).get(f"{DRIVER_ATTRIBUTE_PREFIX}{driver}", "") in TRUE_WORDS


def explain_missing_driver(node: Node, driver: str) -> str:
    """Return why the node cannot run tasks of a driver, such as `missing (not installed: no container engine)`."""
    info = (node.drivers or {}).get(driver)
    if info is None:
        return "missing (the node knows no driver of this name)"
    why = info.health_description[:MAX_DRIVER_REASON_CHARS] or "the node gives no reason"
    return f"unhealthy ({why})" if info.detected else f"missing (not installed: {why})"


def iter_healthy_drivers(node: Node) -> Iterator[str]:
    """Yield the names of the node's healthy drivers."""
    named = (
        key.removeprefix(DRIVER_ATTRIBUTE_PREFIX)
        for key in node.attributes or ()
        if key.startswith(DRIVER_ATTRIBUTE_PREFIX) and key.count(".") == 1
    )
    for driver in {*(node.drivers or ()), *named}:
        if has_healthy_driver(node, driver):
            yield driver


def list_network_names(nodes: Iterable[Node]) -> tuple[list[str], list[str]]:
    """Return the network modes and the host network names that these nodes offer, both sorted."""
    modes, names = {"host", "none"}, {DEFAULT_HOST_NETWORK}
    for node in nodes:
        networks = (node.node_resources.node_networks if node.node_resources is not None else None) or ()
        modes |= {network.mode for network in networks if network.mode}
        names |= {address.alias for network in networks for address in network.addresses or () if address.alias}
        names.update(node.host_networks or ())
    return sorted(modes), sorted(names)


def _find_missing_network(node: Node, requirements: GroupRequirements) -> str:
    """Return the reason text for the first network mode or host network that the node lacks, or an empty text."""
    networks = (node.node_resources.node_networks if node.node_resources is not None else None) or ()
    if requirements.network_mode not in BUILTIN_NETWORK_MODES and all(
        network.mode != requirements.network_mode for network in networks
    ):
        return MISSING_NETWORK
    aliases = {address.alias for network in networks for address in network.addresses or ()}
    aliases.update(node.host_networks or ())
    for port in requirements.host_ports:
        name = resolve_target(port.network, node)
        if name is None:
            return f'invalid host network "{port.network}" template for port "{port.label}"'
        if name != DEFAULT_HOST_NETWORK and name not in aliases:
            return f'missing host network "{name}" for port "{port.label}"'
    return ""
