"""Score formulas of nodes for one group (scheduling.md 3.2), and the selection of the best scores.

A node's score is the mean of the parts that apply to it.
"""

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from wharf.cluster.scheduling.constraints import (
    evaluate_comparison,
    is_unique_target,
    is_variable_target,
    resolve_target,
)
from wharf.cluster.scheduling.fleet.columns import Codes, Floats, Ints
from wharf.cluster.scheduling.fleet.fleet import Fleet
from wharf.contract.model.jobs.constraints import Affinity
from wharf.contract.model.operator.scheduler_configuration import SchedulerAlgorithm

# Names of the score parts, as metrics show them.
BINPACK: Final = "binpack"
DEVICES: Final = "devices"
ANTI_AFFINITY: Final = "job-anti-affinity"
PENALTY: Final = "node-reschedule-penalty"
AFFINITY: Final = "node-affinity"
SPREAD: Final = "allocation-spread"

MAX_PACKING_SCORE: Final = 18.0
"""The highest raw packing score. Scores are divided by it, so that they are from 0 to 1."""
UNAVAILABLE_SCORE: Final = -np.inf
"""The score of a node that has no capacity or must not be used."""

SAMPLE_GROUPS_PER_RESULT: Final = 4
"""How many sample groups of scores `find_best_positions` forms for each requested position.

More groups give a lower bound that is closer to the lowest score among the best.
"""

_LN10: Final = math.log(10)
"""`exp(_LN10 * x)` is 10 to the power of x."""


def score_packing(cpu: Ints, cpu_used: Ints, memory: Ints, memory_used: Ints, algorithm: str) -> Floats:
    """Return the packing score of each node, from 0 to 1: how full it is, or with the spread algorithm how empty.

    `cpu` and `memory` are the capacities (MHz, MB). `cpu_used` and `memory_used` are the amounts in use with one more
    allocation. `algorithm` is `binpack` or `spread`.
    """
    free = _compute_free_power(cpu, cpu_used)
    free += _compute_free_power(memory, memory_used)
    scores: Floats = (free - 2) if algorithm == SchedulerAlgorithm.SPREAD else (20 - free)
    np.clip(scores, 0.0, MAX_PACKING_SCORE, out=scores)
    scores /= MAX_PACKING_SCORE
    return scores


def _compute_free_power(available: Ints, used: Ints) -> Floats:
    """Return 10 to the power of each node's free share: 10 for an empty node, 1 for a full node."""
    share: Floats = used / np.maximum(available, 1)
    np.subtract(1, share, out=share)
    share *= _LN10
    np.exp(share, out=share)
    return share


def score_node_packing(cpu: int, cpu_used: int, memory: int, memory_used: int, algorithm: str) -> float:
    """Return the packing score of one node, from 0 to 1: how full it is, or with the spread algorithm how empty.

    The same formula as in `score_packing`, on plain numbers instead of columns. `cpu` and `memory` are the capacities
    (MHz, MB). `cpu_used` and `memory_used` are the amounts in use with one more allocation.
    """
    free = math.exp(_LN10 * (1 - cpu_used / max(cpu, 1))) + math.exp(_LN10 * (1 - memory_used / max(memory, 1)))
    score = (free - 2) if algorithm == SchedulerAlgorithm.SPREAD else (20 - free)
    return min(max(score, 0.0), MAX_PACKING_SCORE) / MAX_PACKING_SCORE


def find_best_positions(scores: Floats, max_count: int) -> Ints:
    """Return the positions of the `max_count` best scores, best first; of equal scores, the lowest position first.

    Nodes with `UNAVAILABLE_SCORE` are never returned, so the result may be shorter.

    Only scores that reach a lower bound are sorted; usually these are little more than `max_count`.
    """
    lower_bound = _find_lower_bound(scores, max_count)
    positions = np.flatnonzero(scores > lower_bound)
    if len(positions) < max_count and lower_bound != UNAVAILABLE_SCORE:
        # Take all better positions and fill up with positions whose score equals the bound.
        positions = np.concatenate((positions, np.flatnonzero(scores == lower_bound)[: max_count - len(positions)]))
    best: Ints = positions[np.argsort(-scores[positions], kind="stable")][:max_count]
    return best


def _find_lower_bound(scores: Floats, number: int) -> float:
    """Return a score that at least `number` entries of `scores` reach, or `UNAVAILABLE_SCORE` if there are fewer.

    The scores are divided into 4 times `number` groups. If the best scores of the groups are sorted, best first, the
    bound is the entry at place `number`, because `number` groups have an entry that reaches it. This is many times
    cheaper than to partition all scores. If there are too few scores to form groups, all are partitioned.
    """
    group_count = SAMPLE_GROUPS_PER_RESULT * number
    group_size = len(scores) // group_count if group_count else 0
    if group_size < SAMPLE_GROUPS_PER_RESULT:
        return float(np.partition(scores, -number)[-number]) if 0 < number < len(scores) else UNAVAILABLE_SCORE
    best_of_groups = scores[: group_size * group_count].reshape(group_size, group_count).max(axis=0)
    return float(np.partition(best_of_groups, -number)[-number])


def score_affinities(fleet: Fleet, rows: Ints, affinities: Iterable[Affinity]) -> Floats:
    """Return the affinity score of each row, from -1 to 1: the weights of the matching affinities, divided by all.

    A weight may be negative. The divisor is the sum of the absolute weights. Without affinities, all scores are 0.
    """
    matched = np.zeros(len(rows))
    total = 0
    for affinity in affinities:
        total += abs(affinity.weight)
        matched += affinity.weight * _match_affinity(fleet, rows, affinity)
    return matched / total if total else matched


def _match_affinity(fleet: Fleet, rows: Ints, affinity: Affinity) -> Floats:
    """Return 1 for each row whose node matches the affinity, else 0.

    The affinity is evaluated as rarely as possible: once for each node kind (nodes with equal attributes). An attribute
    that is unique to each node is evaluated once for each value. Only if the right side refers to the node too, it is
    evaluated for each node.
    """
    sides = affinity.l_target, affinity.r_target
    if is_variable_target(affinity.r_target):
        nodes = [fleet.get_node(int(row)) for row in rows]
        matches = [
            evaluate_comparison(affinity.operand, *(resolve_target(side, node) for side in sides)) for node in nodes
        ]
        return np.asarray(matches, dtype=np.float64)
    if is_unique_target(affinity.l_target):
        column = fleet.get_property_column(affinity.l_target)
        values = [
            evaluate_comparison(affinity.operand, value, affinity.r_target) for value in (*column.values.values, None)
        ]
        return np.asarray(values, dtype=np.float64)[column.codes[rows]]
    examples = [
        evaluate_comparison(affinity.operand, *(resolve_target(side, node) for side in sides))
        for node in fleet.kind_examples
    ]
    kinds: Codes = fleet.kind[rows]
    return np.asarray(examples, dtype=np.float64)[kinds]
