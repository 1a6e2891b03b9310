"""The scores of the reference, written as slowly and as plainly as they are told there: an oracle for the fast ones."""

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from wharf.cluster.scheduling.constraints import evaluate_comparison, resolve_target
from wharf.cluster.scheduling.resources.usage import Usage, get_group_demand, get_node_capacity
from wharf.contract.model.jobs.constraints import Operand, Spread
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import Node

Standing = Sequence[tuple[Node, str]]
"""Where the job's allocations stand: node, and group."""


class World(msgspec.Struct):
    """`used`: by node id. `ports`: held by node id."""

    nodes: list[Node]
    used: dict[str, Usage]
    ports: dict[str, set[int]]
    standing: list[tuple[Node, str]]


def may_take(world: World, job: Job, group: TaskGroup, node: Node) -> bool:
    for constraint in [*(job.constraints or ()), *(group.constraints or ())]:
        is_of_job = constraint in (job.constraints or ())
        others = [(there, name) for there, name in world.standing if is_of_job or name == group.name]
        if constraint.operand == Operand.DISTINCT_HOSTS:
            if any(there.id == node.id for there, _ in others):
                return False
        elif constraint.operand == Operand.DISTINCT_PROPERTY:
            value = resolve_target(constraint.l_target, node)
            used = sum(resolve_target(constraint.l_target, there) == value for there, _ in others)
            if value is None or used >= int(constraint.r_target or 1):
                return False
        elif not evaluate_comparison(
            constraint.operand, resolve_target(constraint.l_target, node), constraint.r_target
        ):
            return False
    for network in group.networks or ():
        if any(port.value in world.ports[node.id] for port in network.reserved_ports or ()):
            return False
    return (world.used[node.id] + get_group_demand(group)).fits_in(get_node_capacity(node))


def score(world: World, job: Job, group: TaskGroup, node: Node, *, algorithm: str, avoid: Sequence[str] = ()) -> float:
    used, room = world.used[node.id] + get_group_demand(group), get_node_capacity(node)
    free_cpu, free_memory = 1 - used.cpu / room.cpu, 1 - used.memory_mb / room.memory_mb
    total = 10**free_cpu + 10**free_memory
    packed = 20 - total if algorithm == "binpack" else total - 2
    scores = [min(18.0, max(0.0, packed)) / 18]
    siblings = [there for there, name in world.standing if name == group.name]
    collisions = sum(there.id == node.id for there in siblings)
    if collisions and (job.type != "batch" or algorithm == "spread"):
        scores.append(-(collisions + 1) / group.count)
    if node.id in avoid:
        scores.append(-1.0)
    wanted = [*(job.affinities or ()), *(group.affinities or ())]
    if wanted:
        matched = [
            each.weight
            for each in wanted
            if evaluate_comparison(each.operand, resolve_target(each.l_target, node), each.r_target)
        ]
        scores.append(sum(matched) / sum(abs(each.weight) for each in wanted))
    spreads = [*(job.spreads or ()), *(group.spreads or ())]
    weights = sum(spread.weight for spread in spreads)
    boost = sum(_boost(spread, group, siblings, node, spread.weight / weights) for spread in spreads)
    if boost:
        scores.append(boost)
    return math.fsum(scores) / len(scores)


def _boost(spread: Spread, group: TaskGroup, siblings: Sequence[Node], node: Node, share: float) -> float:
    value = resolve_target(spread.attribute, node)
    if value is None:
        return -1.0
    counts = Counter(
        there for there in (resolve_target(spread.attribute, each) for each in siblings) if there is not None
    )
    if spread.spread_target:
        desired = {target.value: target.percent / 100 * group.count for target in spread.spread_target}
        rest = group.count - sum(desired.values())
        if value in desired:
            wanted, used = desired[value], counts[value]
        elif rest > 0:
            wanted, used = rest, sum(number for other, number in counts.items() if other not in desired)
        else:
            return -1.0
        return (wanted - (used + 1)) / wanted * share
    if not counts:
        return 0.0
    least, most, here = min(counts.values()), max(counts.values()), counts[value]
    if here != least:
        return (least - here) / least
    return -1.0 if least == most else (most - least) / least
