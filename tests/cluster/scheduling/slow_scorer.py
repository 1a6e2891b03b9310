"""The score formulas, written slowly and plainly: the expected results for the fast implementation."""

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from wharf.cluster.scheduling.constraints import evaluate_comparison, resolve_target
from wharf.contract.model.jobs.constraints import Operand, Spread
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.resource_usage import Usage, get_group_demand, get_node_capacity

PlacedAllocations = Sequence[tuple[Node, str]]
"""Placed allocations of the job: node and group name."""


class ReferenceState(msgspec.Struct):
    """The state of a cluster. `used` and `ports` (in use) are by node id."""

    nodes: list[Node]
    used: dict[str, Usage]
    ports: dict[str, set[int]]
    placed: list[tuple[Node, str]]


def can_take(reference: ReferenceState, job: Job, group: TaskGroup, node: Node) -> bool:
    """Return whether the node can take one more allocation of the group."""
    for constraint in [*(job.constraints or ()), *(group.constraints or ())]:
        is_of_job = constraint in (job.constraints or ())
        siblings = [(sibling_node, name) for sibling_node, name in reference.placed if is_of_job or name == group.name]
        if constraint.operand == Operand.DISTINCT_HOSTS:
            if any(sibling_node.id == node.id for sibling_node, _ in siblings):
                return False
        elif constraint.operand == Operand.DISTINCT_PROPERTY:
            value = resolve_target(constraint.l_target, node)
            used = sum(resolve_target(constraint.l_target, sibling_node) == value for sibling_node, _ in siblings)
            if value is None or used >= int(constraint.r_target or 1):
                return False
        elif not evaluate_comparison(
            constraint.operand, resolve_target(constraint.l_target, node), constraint.r_target
        ):
            return False
    for network in group.networks or ():
        if any(port.value in reference.ports[node.id] for port in network.reserved_ports or ()):
            return False
    return (reference.used[node.id] + get_group_demand(group)).fits_in(get_node_capacity(node))


def score(
    reference: ReferenceState, job: Job, group: TaskGroup, node: Node, *, algorithm: str, avoid: Sequence[str] = ()
) -> float:
    """Return the score of the node for one more allocation of the group."""
    used, capacity = reference.used[node.id] + get_group_demand(group), get_node_capacity(node)
    free_cpu, free_memory = 1 - used.cpu / capacity.cpu, 1 - used.memory_mb / capacity.memory_mb
    total = 10**free_cpu + 10**free_memory
    packed = 20 - total if algorithm == "binpack" else total - 2
    scores = [min(18.0, max(0.0, packed)) / 18]
    siblings = [sibling_node for sibling_node, name in reference.placed if name == group.name]
    collisions = sum(sibling_node.id == node.id for sibling_node in siblings)
    if collisions and (job.type != "batch" or algorithm == "spread"):
        scores.append(-(collisions + 1) / group.count)
    if node.id in avoid:
        scores.append(-1.0)
    affinities = [*(job.affinities or ()), *(group.affinities or ())]
    if affinities:
        matched = [
            affinity.weight
            for affinity in affinities
            if evaluate_comparison(affinity.operand, resolve_target(affinity.l_target, node), affinity.r_target)
        ]
        scores.append(sum(matched) / sum(abs(affinity.weight) for affinity in affinities))
    spreads = [*(job.spreads or ()), *(group.spreads or ())]
    weights = sum(spread.weight for spread in spreads)
    boost = sum(_boost(spread, group, siblings, node, spread.weight / weights) for spread in spreads)
    if boost:
        scores.append(boost)
    return math.fsum(scores) / len(scores)


def _boost(spread: Spread, group: TaskGroup, siblings: Sequence[Node], node: Node, share: float) -> float:
    """Return the spread boost of the node."""
    value = resolve_target(spread.attribute, node)
    if value is None:
        return -1.0
    counts = Counter(
        sibling_value
        for sibling_value in (resolve_target(spread.attribute, sibling) for sibling in siblings)
        if sibling_value is not None
    )
    if spread.spread_target:
        desired = {item.value: item.percent / 100 * group.count for item in spread.spread_target}
        unassigned = group.count - sum(desired.values())
        if value in desired:
            target, used = desired[value], counts[value]
        elif unassigned > 0:
            target, used = (
                unassigned,
                sum(number for counted_value, number in counts.items() if counted_value not in desired),
            )
        else:
            return -1.0
        return (target - (used + 1)) / target * share
    if not counts:
        return 0.0
    lowest, highest, count = min(counts.values()), max(counts.values()), counts[value]
    if count != lowest:
        return (lowest - count) / lowest
    return -1.0 if lowest == highest else (highest - lowest) / lowest
