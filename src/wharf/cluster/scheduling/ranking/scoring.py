"""How good a node is for a group: the scores that add up to a mean (scheduling.md 3.2), and which are the best."""

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

BINPACK: Final = "binpack"
DEVICES: Final = "devices"
ANTI_AFFINITY: Final = "job-anti-affinity"
PENALTY: Final = "node-reschedule-penalty"
AFFINITY: Final = "node-affinity"
SPREAD: Final = "allocation-spread"

MAX_PACKING_SCORE: Final = 18.0
UNAVAILABLE_SCORE: Final = -np.inf
"""The score of a node that is full or closed."""

SAMPLE_GROUPS_PER_RESULT: Final = 4
"""For each of the best that are asked for."""

_LN10: Final = math.log(10)


def score_packing(cpu: Ints, cpu_used: Ints, memory: Ints, memory_used: Ints, algorithm: str) -> Floats:
    """How full (or, when spreading, how empty) each node is with the candidate on it, from 0 to 1."""
    free = _free(cpu, cpu_used)
    free += _free(memory, memory_used)
    scores: Floats = (free - 2) if algorithm == SchedulerAlgorithm.SPREAD else (20 - free)
    np.clip(scores, 0.0, MAX_PACKING_SCORE, out=scores)
    scores /= MAX_PACKING_SCORE
    return scores


def _free(has: Ints, used: Ints) -> Floats:
    """Ten to the power of the share that is free."""
    share: Floats = used / np.maximum(has, 1)
    np.subtract(1, share, out=share)
    share *= _LN10
    np.exp(share, out=share)
    return share


def score_node_packing(cpu: int, cpu_used: int, memory: int, memory_used: int, algorithm: str) -> float:
    """The same for a single node."""
    free = math.exp(_LN10 * (1 - cpu_used / max(cpu, 1))) + math.exp(_LN10 * (1 - memory_used / max(memory, 1)))
    score = (free - 2) if algorithm == SchedulerAlgorithm.SPREAD else (20 - free)
    return min(max(score, 0.0), MAX_PACKING_SCORE) / MAX_PACKING_SCORE


def find_best_positions(scores: Floats, number: int) -> Ints:
    """The places of so many best, best first and of equals the first; none that is closed."""
    least = _least_of_the_best(scores, number)
    places = np.flatnonzero(scores > least)
    if (
        len(places) < number and least != UNAVAILABLE_SCORE
    ):  # All of these, and as many of those that are just as good as the least.
        places = np.concatenate((places, np.flatnonzero(scores == least)[: number - len(places)]))
    best: Ints = places[np.argsort(-scores[places], kind="stable")][:number]
    return best


def _least_of_the_best(scores: Floats, number: int) -> float:
    """A score that so many reach, at most the least of theirs. The scores are dealt into groups, and only the best of each
    group are parted: many times cheaper than to part all of them.
    """
    groups = SAMPLE_GROUPS_PER_RESULT * number
    each = len(scores) // groups if groups else 0
    if each < SAMPLE_GROUPS_PER_RESULT:
        return float(np.partition(scores, -number)[-number]) if 0 < number < len(scores) else UNAVAILABLE_SCORE
    highest = scores[: each * groups].reshape(each, groups).max(axis=0)
    return float(np.partition(highest, -number)[-number])


def score_affinities(fleet: Fleet, rows: Ints, wanted: Iterable[Affinity]) -> Floats:
    """The matching weights of each of the rows, over all weights."""
    matched = np.zeros(len(rows))
    total = 0
    for affinity in wanted:
        total += abs(affinity.weight)
        matched += affinity.weight * _matching(fleet, rows, affinity)
    return matched / total if total else matched


def _matching(fleet: Fleet, rows: Ints, affinity: Affinity) -> Floats:
    sides = affinity.l_target, affinity.r_target
    if is_variable_target(affinity.r_target):
        nodes = [fleet.get_node(int(row)) for row in rows]
        answers = [
            evaluate_comparison(affinity.operand, *(resolve_target(side, node) for side in sides)) for node in nodes
        ]
        return np.asarray(answers, dtype=np.float64)
    if is_unique_target(affinity.l_target):
        column = fleet.get_property_column(affinity.l_target)
        values = [
            evaluate_comparison(affinity.operand, value, affinity.r_target) for value in (*column.words.values, None)
        ]
        return np.asarray(values, dtype=np.float64)[column.codes[rows]]
    examples = [
        evaluate_comparison(affinity.operand, *(resolve_target(side, node) for side in sides))
        for node in fleet.kind_examples
    ]
    kinds: Codes = fleet.kind[rows]
    return np.asarray(examples, dtype=np.float64)[kinds]
