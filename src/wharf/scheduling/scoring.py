"""How good a node is for a group: the scores that add up to a mean (scheduling.md 3.2)."""

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from wharf.model.placement import Affinity
from wharf.model.scheduler_configuration import SchedulerAlgorithm
from wharf.scheduling.columns import Codes, Floats, Ints
from wharf.scheduling.fleet import Fleet
from wharf.scheduling.operands import holds
from wharf.scheduling.targets import is_unique, is_variable, resolve

BINPACK: Final = "binpack"
DEVICES: Final = "devices"
ANTI_AFFINITY: Final = "job-anti-affinity"
PENALTY: Final = "node-reschedule-penalty"
AFFINITY: Final = "node-affinity"
SPREAD: Final = "allocation-spread"

HIGHEST: Final = 18.0
_LN10: Final = math.log(10)


def packing(cpu: Ints, cpu_used: Ints, memory: Ints, memory_used: Ints, algorithm: str) -> Floats:
    """How full (or, when spreading, how empty) each node is with the candidate on it, from 0 to 1."""
    free = np.exp(_LN10 * (1 - cpu_used / np.maximum(cpu, 1))) + np.exp(
        _LN10 * (1 - memory_used / np.maximum(memory, 1))
    )
    scores: Floats = (free - 2) if algorithm == SchedulerAlgorithm.SPREAD else (20 - free)
    return np.clip(scores, 0.0, HIGHEST) / HIGHEST


def packing_of_one(cpu: int, cpu_used: int, memory: int, memory_used: int, algorithm: str) -> float:
    """The same for a single node."""
    free = math.exp(_LN10 * (1 - cpu_used / max(cpu, 1))) + math.exp(_LN10 * (1 - memory_used / max(memory, 1)))
    score = (free - 2) if algorithm == SchedulerAlgorithm.SPREAD else (20 - free)
    return min(max(score, 0.0), HIGHEST) / HIGHEST


def affinities(fleet: Fleet, rows: Ints, wanted: Iterable[Affinity]) -> Floats:
    """The matching weights of each of the rows, over all weights."""
    matched = np.zeros(len(rows))
    total = 0
    for affinity in wanted:
        total += abs(affinity.weight)
        matched += affinity.weight * _matching(fleet, rows, affinity)
    return matched / total if total else matched


def _matching(fleet: Fleet, rows: Ints, affinity: Affinity) -> Floats:
    sides = affinity.l_target, affinity.r_target
    if is_variable(affinity.r_target):
        nodes = [fleet.node(int(row)) for row in rows]
        answers = [holds(affinity.operand, *(resolve(side, node) for side in sides)) for node in nodes]
        return np.asarray(answers, dtype=np.float64)
    if is_unique(affinity.l_target):
        column = fleet.property(affinity.l_target)
        values = [holds(affinity.operand, value, affinity.r_target) for value in (*column.words.values, None)]
        return np.asarray(values, dtype=np.float64)[column.codes[rows]]
    examples = [holds(affinity.operand, *(resolve(side, node) for side in sides)) for node in fleet.kind_examples]
    kinds: Codes = fleet.kind[rows]
    return np.asarray(examples, dtype=np.float64)[kinds]
