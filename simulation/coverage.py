"""What a run of many seeds must have met: every kind of fault, and every step of every table of states that can be.

`NOT_YET` names the steps that no part of the product takes so far, each with what it waits for. A step that is taken
all the same must leave the list.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from simulation.chaos import ALL_FAULTS
from simulation.invariants import Transition
from simulation.run import SeedResult
from wharf.contract.model.state_machines.transitions import STATE_MACHINES, TASK_STATES

MIN_SEEDS_FOR_COVERAGE: Final = 300
"""Fewer seeds need not meet everything."""

# Machine and either end of a step, or both: what waits for a part that is not built.
UNREACHED_STEPS: Final[Mapping[str, str]] = {
    TASK_STATES.name: "these steps are the node's, finer and in a table of its own",
    "evaluation failed": "limits of deliveries: the scheduling issue",
}


class Coverage(msgspec.Struct, frozen=True):
    faults: dict[str, int]
    transitions: dict[Transition, int]

    @property
    def missing_faults(self) -> list[str]:
        return [fault for fault in ALL_FAULTS if fault not in self.faults]

    @property
    def missing_steps(self) -> list[str]:
        """Steps that can be, and were not taken."""
        return [_told(step) for step in _all_steps() if step not in self.transitions and _why_not_yet(step) == ""]

    @property
    def pending_steps(self) -> list[str]:
        return [f"{_told(step)} ({why})" for step in _all_steps() if (why := _why_not_yet(step))]

    @property
    def unexpected_steps(self) -> list[str]:
        """Steps that were taken although they stand among those that cannot be yet."""
        return [_told(step) for step in self.transitions if _why_not_yet(step)]


def measure_coverage(results: Iterable[SeedResult]) -> Coverage:
    faults: dict[str, int] = {}
    transitions: dict[Transition, int] = {}
    for result in results:
        for fault, count in result.faults.items():
            faults[fault] = faults.get(fault, 0) + count
        for step, count in result.transitions.items():
            transitions[step] = transitions.get(step, 0) + count
    return Coverage(faults, transitions)


def _all_steps() -> list[Transition]:
    return [
        (machine.name, step.source.value if step.source is not None else None, step.target.value)
        for machine in STATE_MACHINES
        for step in machine.transitions
        if not step.feature
    ]


def _why_not_yet(step: Transition) -> str:
    machine, source, target = step
    for name in (machine, f"{machine} {source}", f"{machine} {target}", f"{machine} {source}>{target}"):
        if name in UNREACHED_STEPS:
            return UNREACHED_STEPS[name]
    return ""


def _told(step: Transition) -> str:
    machine, source, target = step
    return f"{machine}: {source or 'new'} -> {target}"
