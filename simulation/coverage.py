"""The coverage of a run of many seeds: every kind of fault and every possible state transition must have happened.

`UNREACHED_STEPS` lists the state transitions that the product cannot take yet, with the reason. If such a transition
happens, it must be removed from the list. `RARE_STEPS` lists those that many runs never take: they may happen or not.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from simulation.chaos import ALL_FAULTS
from simulation.invariants import Transition
from simulation.run import SeedResult
from wharf.contract.model.state_machines.transitions import STATE_MACHINES, TASK_STATES

MIN_SEEDS_FOR_COVERAGE: Final = 300
"""Runs of fewer seeds need no complete coverage."""

# By state machine, or state machine and one or both states: the reason.
UNREACHED_STEPS: Final[Mapping[str, str]] = {
    TASK_STATES.name: "the node takes these steps, in a more detailed state machine",
}
RARE_STEPS: Final[Mapping[str, str]] = {
    "evaluation pending>failed": "takes three deliveries of 60 s in a row; a new leader counts from the start",
}


class Coverage(msgspec.Struct, frozen=True):
    """How often each fault and each state transition happened in a run."""

    faults: dict[str, int]
    transitions: dict[Transition, int]

    @property
    def missing_faults(self) -> list[str]:
        return [fault for fault in ALL_FAULTS if fault not in self.faults]

    @property
    def missing_steps(self) -> list[str]:
        """Return the possible state transitions that never happened."""
        return [
            _format_step(step)
            for step in _list_steps()
            if step not in self.transitions and not _find_reason(step, {**UNREACHED_STEPS, **RARE_STEPS})
        ]

    @property
    def pending_steps(self) -> list[str]:
        reasons = {**UNREACHED_STEPS, **RARE_STEPS}
        return [
            f"{_format_step(step)} ({reason})"
            for step in _list_steps()
            if step not in self.transitions and (reason := _find_reason(step, reasons))
        ]

    @property
    def unexpected_steps(self) -> list[str]:
        """Return the state transitions that happened although `UNREACHED_STEPS` lists them."""
        return [_format_step(step) for step in self.transitions if _find_reason(step, UNREACHED_STEPS)]


def measure_coverage(results: Iterable[SeedResult]) -> Coverage:
    """Return the sums of the faults and state transitions of all results."""
    faults: dict[str, int] = {}
    transitions: dict[Transition, int] = {}
    for result in results:
        for fault, count in result.faults.items():
            faults[fault] = faults.get(fault, 0) + count
        for step, count in result.transitions.items():
            transitions[step] = transitions.get(step, 0) + count
    return Coverage(faults, transitions)


def _list_steps() -> list[Transition]:
    """Return the state transitions of all state machines, except those of optional features."""
    return [
        (machine.name, step.source.value if step.source is not None else None, step.target.value)
        for machine in STATE_MACHINES
        for step in machine.transitions
        if not step.feature
    ]


def _find_reason(step: Transition, reasons: Mapping[str, str]) -> str:
    """Return the reason that `reasons` gives for this step, or an empty string if it gives none."""
    machine, source, target = step
    for name in (machine, f"{machine} {source}", f"{machine} {target}", f"{machine} {source}>{target}"):
        if name in reasons:
            return reasons[name]
    return ""


def _format_step(step: Transition) -> str:
    machine, source, target = step
    return f"{machine}: {source or 'new'} -> {target}"
