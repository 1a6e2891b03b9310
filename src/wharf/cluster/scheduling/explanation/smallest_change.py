"""Finds the smallest change after which one more allocation of a group could be placed, as a text."""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from wharf.cluster.scheduling.explanation.examination import (
    MAX_EXAMPLES,
    ExaminedNodes,
    format_nodes,
    get_node_state,
    list_node_constraints,
    without_constraints,
)
from wharf.cluster.scheduling.explanation.suggestions import (
    suggest_devices,
    suggest_distinct_node,
    suggest_drivers,
    suggest_freeing_resource,
    suggest_networks,
    suggest_volume_access,
)
from wharf.cluster.scheduling.feasibility import checker
from wharf.cluster.scheduling.feasibility.location import is_in_pool_and_datacenter
from wharf.cluster.scheduling.fleet.columns import Floats, Ints, Mask
from wharf.cluster.scheduling.ranking.candidates import CORES_DIMENSION
from wharf.cluster.scheduling.resources.assignment import list_usable_cores
from wharf.contract.model.jobs.constraints import Constraint
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.resources import MIN_CPU_MHZ, MIN_MEMORY_MB
from wharf.contract.model.resource_usage import get_group_demand

DIMENSION_UNITS: Final = {"cpu": "MHz", "memory": "MB", "disk": "MB"}
"""The units of the resources that have amounts."""
AMOUNT_CHANGES: Final = ("lower ", "free ")
"""How changes begin that make just enough CPU, memory or disk available for one more allocation."""
_REQUEST_FIELDS: Final = {
    "cpu": ("cpu", "CPU", MIN_CPU_MHZ),
    CORES_DIMENSION: ("cores", "Cores", 1),
    "memory": ("memory_mb", "MemoryMB", MIN_MEMORY_MB),
}
"""For each dimension that tasks request: the field, its name in job files, and the smallest request."""
DIMENSION_LABELS: Final = {"cpu": "CPU", "memory": "memory", "disk": "disk"}


class ChangeSuggester:
    """Suggests the smallest change, of a group or of the nodes, after which one more allocation could be placed."""

    def __init__(self, examined: ExaminedNodes) -> None:
        self._examined = examined
        self._fleet = examined.fleet
        self._job = examined.job
        self._group = examined.group

    def suggest_change(self) -> str:
        """Return a text with a change after which one more allocation could be placed, or an empty text if none is
        needed.
        """
        if self._examined.mask_fitting().any():
            return ""
        if not self._examined.is_considered.any():
            return self._suggest_reachable_node()
        suggestions = [self._suggest_closed_node(), self._suggest_on_open_nodes()]
        if len(self._examined.rows):
            suggestions.reverse()  # Open nodes lack only resources. An operator may have a reason to close others.
        return ", or ".join(text for text in suggestions if text)

    def _suggest_on_open_nodes(self) -> str:
        """Return what would help on the nodes that accept placements."""
        if not len(self._examined.rows):
            return self._suggest_feasible_node()
        return (
            self._suggest_freeing_amounts()
            or self._suggest_feasible_node()
            or self._suggest_freeing_exclusive()
            or self._suggest_distinct()
        )

    def _suggest_closed_node(self) -> str:
        """Return the command that lets a node take allocations again, if one could take this allocation.

        Such a node is draining or not eligible, because an operator has changed it. Return an empty text if there is none.
        """
        nodes = sorted((node.name or node.id, node.id, node) for node in self._examined.list_closed_nodes())
        if not nodes:
            return ""
        name, _, node = nodes[0]
        command = "drain --disable" if node.drain_strategy is not None else "eligibility --enable"
        text = f"let {name} take allocations again: it is {get_node_state(node)}, and `wharf node {command} {name}` ends that"
        return text + (f" (the same is true of {format_nodes(len(nodes) - 1)} more)" if len(nodes) > 1 else "")

    def _suggest_reachable_node(self) -> str:
        """Return how to get a node that is ready and in the job's pool and datacenters, if there is none."""
        matching_nodes = [node for _, node in self._fleet.iter_nodes() if is_in_pool_and_datacenter(self._job, node)]
        unreported = sorted(node.name or node.id for node in matching_nodes if self._examined.is_full_report_due(node))
        if unreported:
            return f"wait until {', '.join(unreported[:MAX_EXAMPLES])} has reported its allocations"
        if matching_nodes:
            names = ", ".join(sorted(node.name or node.id for node in matching_nodes)[:MAX_EXAMPLES])
            if closed := self._suggest_closed_node():
                return closed
            return f"make a node of the job's pool and datacenters ready: {names} ({get_node_state(matching_nodes[0])})"
        pools = sorted({node.node_pool for _, node in self._fleet.iter_nodes()})
        datacenters = sorted({node.datacenter for _, node in self._fleet.iter_nodes()})
        if not pools:
            return "add a node: the cluster has none"
        if self._job.node_pool != "all" and self._job.node_pool not in pools:
            return (
                f'add a node to the pool "{self._job.node_pool}", '
                f"or use another pool: {', '.join(pools[:MAX_EXAMPLES])}"
            )
        return f"set a datacenter that has nodes of the job's pool: {', '.join(datacenters[:MAX_EXAMPLES])}"

    def _suggest_freeing_amounts(self) -> str:
        """Return how much CPU, memory and disk to request less or to free, and on which node.

        Return an empty text if every node lacks something else too.
        """
        amounts: list[tuple[str, Ints]] = []
        is_amount: Mask = np.ones(len(self._examined.rows), dtype=np.bool_)
        is_amount[list(self._examined.distinct_exclusions)] = False
        for dimension, is_short in self._examined.missing_masks:
            missing = self._examined.get_missing_amounts(dimension)
            if missing is None:
                is_amount &= ~is_short
            else:
                amounts.append((dimension, np.maximum(missing, 0)))
        if not is_amount.any():
            return ""
        share = self._measure_shortage(amounts)
        share[~is_amount] = np.inf
        best = int(share.argmin())
        if self._mask_large_enough(amounts, is_amount).any():
            lowered = self._suggest_lower_request(_list_missing(amounts, best))
        else:
            lowered = self._suggest_request_of_empty_node(amounts, is_amount)
        freed = self._suggest_freeing(amounts, is_amount, share)
        return ", or ".join(text for text in (lowered, freed) if text)

    def _suggest_request_of_empty_node(self, amounts: Sequence[tuple[str, Ints]], is_amount: Mask) -> str:
        """Return the suggestion to lower requests to what a node has in total, if every node has too little in total.

        What is free now says nothing then: the job must request less in any case. `is_amount` as in `_suggest_freeing`.
        """
        missing = self._list_missing_in_total([dimension for dimension, _ in amounts])
        share = self._measure_shortage(missing)
        share[~is_amount] = np.inf
        _, changes = _lower_largest_tasks(self._group, _list_missing(missing, int(share.argmin())))
        return f"lower {' and '.join(changes)}" if changes else ""

    def _suggest_freeing(self, amounts: Sequence[tuple[str, Ints]], is_amount: Mask, share: Floats) -> str:
        """Return how much to free, on the node with the smallest shortage or on any node where that is enough.

        A node that is too small even without any other allocation is not suggested. If all are, return what a suitable
        node must have. `is_amount` has the nodes that lack nothing else, and `share` how much each one lacks.
        """
        is_possible = self._mask_large_enough(amounts, is_amount)
        if not is_possible.any():
            needed = " and ".join(
                f"{self._get_requested(dimension)} {DIMENSION_UNITS[dimension]} of {DIMENSION_LABELS[dimension]}"
                for dimension, missing in amounts
                if missing.any()
            )
            return "" if self._job.runs_on_every_node else f"add a node with at least {needed}"
        best = int(np.where(is_possible, share, np.inf).argmin())
        best_missing = _list_missing(amounts, best)
        for dimension, missing in amounts:
            is_possible &= missing <= dict(best_missing).get(dimension, 0)
        node_count = int(is_possible.sum())
        freed_amounts = " and ".join(
            f"{amount} {DIMENSION_UNITS[dimension]}{_format_dimension(dimension)}" for dimension, amount in best_missing
        )
        location = (
            f"on {self._examined.get_example_names([int(self._examined.rows[best])])[0]}"
            if node_count == 1
            else f"on any of {node_count} nodes"
        )
        return f"free {freed_amounts} {location}"

    def _mask_large_enough(self, amounts: Sequence[tuple[str, Ints]], is_amount: Mask) -> Mask:
        """Return which of these nodes have enough in total, whatever runs on them now."""
        mask = is_amount.copy()
        for dimension, _ in amounts:
            mask &= self._get_capacity(dimension) >= self._get_requested(dimension)
        return mask

    def _get_capacity(self, dimension: str) -> Ints:
        """Return how much of CPU (MHz), memory or disk (MB) each feasible node has in total for allocations, or how many cores."""
        candidates = self._examined.candidates
        match dimension:
            case "cpu":
                return candidates.cpu
            case "memory":
                return candidates.memory
            case "disk":
                return candidates.disk
        return self._examined.usable_cores

    def _get_requested(self, dimension: str) -> int:
        """Return how much one allocation requests of CPU (MHz), memory or disk (MB), or how many cores."""
        if dimension == CORES_DIMENSION:
            return self._examined.assigner.requested_cores
        demand = get_group_demand(self._group)
        return {"cpu": demand.cpu, "memory": demand.memory_mb}.get(dimension, demand.disk_mb)

    def _list_missing_in_total(self, dimensions: Iterable[str]) -> list[tuple[str, Ints]]:
        """Return how much each feasible node lacks of these dimensions even when nothing else runs on it."""
        return [(name, np.maximum(self._get_requested(name) - self._get_capacity(name), 0)) for name in dimensions]

    def _measure_shortage(self, missing_amounts: Sequence[tuple[str, Ints]]) -> Floats:
        """Return a number for each feasible node that is larger the more it lacks, and 0 if it lacks nothing.

        Shares of the requested amounts make dimensions comparable. A node that lacks fewer dimensions has a smaller number.
        """
        share = np.zeros(len(self._examined.rows))
        for dimension, missing in missing_amounts:
            share += missing / max(1, self._get_requested(dimension)) + (missing > 0)
        return share

    def _suggest_lower_request(self, missing_amounts: Sequence[tuple[str, int]]) -> str:
        """Return the suggestion to lower the requests of the group's largest tasks by these amounts.

        `missing_amounts` are pairs (dimension, MHz or MB). Return an empty text if that is not possible, or not enough.
        """
        group, changes = _lower_largest_tasks(self._group, missing_amounts)
        if not changes:
            return ""
        has_capacity = self._examined.build_candidates(group, self._examined.rows).has_capacity
        return f"lower {' and '.join(changes)}" if bool(has_capacity.any()) else ""

    def _suggest_feasible_node(self) -> str:
        """Return the suggestion to drop constraints, or else to provide what the fewest nodes lack.

        Return an empty text if dropping constraints does not help and some node is feasible.
        """
        constraints = list_node_constraints(self._job, self._group)
        dropped, node_count = self._find_dropped_constraints(constraints)
        if dropped:
            names = " and ".join(map(str, dropped))
            plural = "s" if len(dropped) > 1 else ""
            return f"drop the constraint{plural} {names}: {format_nodes(node_count)} could then take the allocation"
        excluded = list(self._examined.iter_infeasible())
        if not excluded or len(self._examined.rows):
            return ""
        by_rule = {str(constraint).rstrip(): constraint for constraint in constraints}
        rules = [each for each in excluded if each.rule not in by_rule]
        if not rules:
            names = " and ".join(each.rule for each in excluded)
            these = "these constraints" if len(excluded) > 1 else "this constraint"
            return f"add a node that meets {names} and has enough free resources, or change {these}"
        fewest = min(rules, key=lambda rule: rule.nodes)
        nodes = [node for _, node in self._fleet.iter_nodes() if is_in_pool_and_datacenter(self._job, node)]
        match fewest.rule:
            case checker.MISSING_DRIVERS:
                suggestion = suggest_drivers(nodes, self._group)
            case checker.MISSING_DEVICES:
                suggestion = suggest_devices(nodes, self._group)
            case checker.MISSING_VOLUMES:
                suggestion = suggest_volume_access(nodes, self._group, self._examined.find_volume)
            case _:
                suggestion = suggest_networks(nodes, self._group, fewest.rule)
        if suggestion:
            return suggestion
        location = _format_location(fewest.nodes, fewest.examples)
        if fewest.rule == checker.MISSING_VOLUMES:
            names = " and ".join(sorted({request.source for request in (self._group.volumes or {}).values()}))
            return (
                f"create the volume {names}, with the access that the job requests, {location}: "
                "use `wharf volume create`"
            )
        return f'fix "{fewest.rule}" {location}'

    def _find_dropped_constraints(self, constraints: Sequence[Constraint]) -> tuple[list[Constraint], int]:
        """Return the constraints without which further nodes could take an allocation, and the number of these nodes.

        It is a single constraint if one is enough, that which excludes the most nodes; else as few as possible.
        """
        counts = [(self._count_nodes_without([constraint]), constraint) for constraint in constraints]
        best = max(counts, key=lambda each: each[0], default=None)
        if best is not None and best[0]:
            return [best[1]], best[0]
        dropped = list(constraints)
        node_count = self._count_nodes_without(dropped) if len(constraints) > 1 else 0
        if not node_count:
            return [], 0
        for constraint in constraints:
            rest = [each for each in dropped if each is not constraint]
            if rest and (count := self._count_nodes_without(rest)):
                dropped, node_count = rest, count
        return dropped, node_count

    def _count_nodes_without(self, constraints: Collection[Constraint]) -> int:
        """Return how many nodes that are infeasible now could take an allocation without these constraints."""
        job, group = without_constraints(self._job, self._group, constraints)
        rows = np.setdiff1d(self._examined.find_feasible_rows(job, group), self._examined.rows, assume_unique=True)
        return self._examined.count_fitting_rows(group, rows) if len(rows) else 0

    def _suggest_freeing_exclusive(self) -> str:
        """Return how to free ports, cores, devices or allocation slots, or an empty text if no node lacks them."""
        exclusive_shortages = {
            dimension: is_short
            for dimension, is_short in self._examined.missing_masks
            if is_short.any() and dimension not in DIMENSION_UNITS
        }
        if not exclusive_shortages:
            return ""
        if CORES_DIMENSION in exclusive_shortages and (suggestion := self._suggest_cores()):
            return suggestion
        fewest = min(exclusive_shortages, key=lambda dimension: int(exclusive_shortages[dimension].sum()))
        positions = np.flatnonzero(exclusive_shortages[fewest])
        return suggest_freeing_resource(
            fewest, _format_location(len(positions), self._examined.get_example_names(self._examined.rows[positions]))
        )

    def _suggest_cores(self) -> str:
        """Return the suggestion to lower the cores of the largest task to what one node can give, or to free cores there."""
        if not any(list_usable_cores(node) for _, node in self._fleet.iter_nodes()):
            return "request CPU instead of Cores: no node has cores that can be reserved for a task"
        if never := self._suggest_larger_node():
            return never
        suggestions = (self._suggest_fewer_cores(), self._suggest_freeing_cores())
        text = ", or ".join(each for each in suggestions if each)
        if text or self._job.runs_on_every_node:
            return text
        needed = f"{_format_cores(self._examined.assigner.requested_cores)} and {self._get_requested('memory')} MB"
        return f"add a node with at least {needed} of memory"

    def _suggest_larger_node(self) -> str:
        """Return what would help if every feasible node is too small for the group even when nothing else runs on it.

        The advice is the same on busy and on empty nodes. Return an empty text if a node is large enough.
        """
        missing = self._list_missing_in_total((CORES_DIMENSION, "memory", "disk"))
        share = self._measure_shortage(missing)
        if self._job.runs_on_every_node or not share.all():
            return ""
        _, changes = _lower_largest_tasks(self._group, _list_missing(missing, int(share.argmin())))
        lowered = f"lower {' and '.join(changes)}, or " if changes else ""
        needed = (
            f"{_format_cores(self._get_requested(CORES_DIMENSION))} and {self._get_requested('memory')} MB of memory"
        )
        return f"{lowered}add a node with at least {needed}"

    def _suggest_fewer_cores(self) -> str:
        """Return the suggestion to lower the cores of the largest task as little as possible, or an empty text.

        If the nodes lack memory or disk too, those requests are also lowered.
        """
        tasks = self._group.tasks or ()
        task = max(tasks, key=lambda task: task.resources.cores if task.resources is not None else 0)
        cores = task.resources.cores if task.resources is not None else 0
        best, lowest, highest = "", 1, cores - 1
        while lowest <= highest:  # Fewer cores fit on at least as many nodes.
            count = (lowest + highest) // 2
            if text := self._suggest_core_count(task, count):
                best, lowest = text, count + 1
            else:
                highest = count - 1
        return best

    def _suggest_core_count(self, task: Task, count: int) -> str:
        """Return the suggestion to request this many cores, and less memory and disk if some node lacks those.

        Return an empty text if that is not enough on any node.
        """
        assert task.resources is not None, "a task that requests cores has resources"
        lowered = replace(task, resources=replace(task.resources, cores=count))
        group = replace(self._group, tasks=tuple(lowered if each is task else each for each in self._group.tasks or ()))
        changes = [f"Cores of {group.name}/{task.name} from {task.resources.cores} to {count}"]
        candidates = self._examined.build_probed_candidates(group)
        is_suitable = (candidates.cpu_after <= candidates.cpu) & (candidates.allocations_left > 0)
        is_suitable[list(candidates.missing_dimensions)] = False
        if not is_suitable.any():
            return ""
        shortages = {
            "memory": np.maximum(candidates.memory_after - candidates.memory, 0),
            "disk": np.maximum(candidates.disk_after - candidates.disk, 0),
        }
        share = sum(missing / max(1, self._get_requested(name)) for name, missing in shortages.items())
        position = int(np.where(is_suitable, share, np.inf).argmin())
        for dimension, missing in shortages.items():
            if missing[position]:
                result = _lower_largest_task(group, dimension, int(missing[position]))
                if result is None:
                    return ""
                group, change = result
                changes.append(change)
        return f"lower {' and '.join(changes)}"

    def _suggest_freeing_cores(self) -> str:
        """Return how many cores to free on the node with the most free ones, or an empty text if that is not enough."""
        requested, free = self._examined.assigner.requested_cores, self._examined.free_cores
        position = int(free.argmax())
        lacks_other = any(
            is_short[position]
            for dimension, is_short in self._examined.missing_masks
            if dimension in {"memory", "disk"}
        )
        row = int(self._examined.rows[position])
        if lacks_other or len(list_usable_cores(self._fleet.get_node(row))) < requested:
            return ""
        return f"free {_format_cores(requested - int(free[position]))} on {self._examined.get_example_names([row])[0]}"

    def _suggest_distinct(self) -> str:
        """Return the suggestion to add a node that the constraints `distinct_hosts` and `distinct_property` allow."""
        if not self._examined.distinct_exclusions:
            return "add a node with enough free resources"
        return suggest_distinct_node(self._job, self._group, next(iter(self._examined.distinct_exclusions.values())))


def _list_missing(amounts: Sequence[tuple[str, Ints]], position: int) -> list[tuple[str, int]]:
    """Return the amounts that the node at this position lacks, by dimension."""
    return [(dimension, int(missing[position])) for dimension, missing in amounts if missing[position] > 0]


def _format_dimension(dimension: str) -> str:
    """Return " of disk" for disk, because "free 100 MB" alone means memory; else an empty text."""
    return " of disk" if dimension == "disk" else ""


def _format_location(node_count: int, examples: Sequence[str]) -> str:
    """Return where to free a resource: on the only node, or on one of several, with examples."""
    return f"on {examples[0]}" if node_count == 1 else f"on one of {format_nodes(node_count)} ({', '.join(examples)})"


def _format_cores(count: int) -> str:
    """Return the count with the word "core" or "cores"."""
    return "1 core" if count == 1 else f"{count} cores"


def _lower_largest_tasks(group: TaskGroup, missing_amounts: Iterable[tuple[str, int]]) -> tuple[TaskGroup, list[str]]:
    """Return the group with lower requests of its largest tasks, and the text of each change; no changes if one is impossible.

    `missing_amounts` are pairs (dimension, amount), as in `_lower_largest_task`.
    """
    lowered, changes = group, list[str]()
    for dimension, amount in missing_amounts:
        result = _lower_largest_task(lowered, dimension, amount)
        if result is None:
            return group, []
        lowered, change = result
        changes.append(change)
    return lowered, changes


def _lower_largest_task(group: TaskGroup, dimension: str, amount: int) -> tuple[TaskGroup, str] | None:
    """Return the group with the request of its largest task lowered by the amount, and a text that describes the
    change.

    `dimension` is cpu (MHz), cores, memory or disk (MB). Disk is a request of the whole group. Return `None` if the task
    requests too little.
    """
    if dimension == "disk":
        size = group.ephemeral_disk.size_mb
        if size <= amount:
            return None
        lowered = replace(group, ephemeral_disk=replace(group.ephemeral_disk, size_mb=size - amount))
        return lowered, f"the disk of {group.name} from {size} to {size - amount}"
    name, label, minimum = _REQUEST_FIELDS[dimension]
    tasks = list(group.tasks or ())
    requested = [getattr(task.resources, name) if task.resources is not None else 0 for task in tasks]
    if not requested or max(requested) - amount < minimum:
        return None
    position = requested.index(max(requested))
    resources = tasks[position].resources
    assert resources is not None, "a task with requests has resources"
    tasks[position] = replace(tasks[position], resources=replace(resources, **{name: requested[position] - amount}))
    text = (
        f"{label} of {group.name}/{tasks[position].name} from {requested[position]} to {requested[position] - amount}"
    )
    return replace(group, tasks=tuple(tasks)), text
