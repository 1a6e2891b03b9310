"""Short ways to write steps, their facts, and decisions about them."""

from collections.abc import Mapping
from typing import Any

from tests.builders import a_batch_job, a_group
from wharf.cluster.scheduling.steps.decider import ConditionResult, StepFacts, decide_steps
from wharf.cluster.scheduling.steps.needs import NeededStep
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_states import StepState
from wharf.contract.model.jobs.steps import Need

NOW_NS = 1_000_000_000_000


def a_step(name: str, *needs: Need | str, size: int = 1, **fields: Any) -> TaskGroup:
    """Return a step that needs these steps. A name alone is a need with the default `When`."""
    depends = tuple(need if isinstance(need, Need) else Need(on=need) for need in needs)
    return a_group(name, depends=depends or None, array=GroupArray(size=size), **fields)


def a_run(*groups: TaskGroup, **fields: Any) -> Job:
    return a_batch_job("nightly", *groups, **fields)


def facts_of(group: TaskGroup, elements: bytes = b"", **state: Any) -> StepFacts:
    """Return the facts of a step. By default it waits, and no element has ended."""
    size = group.array.element_count if group.array is not None else 1
    return StepFacts(group, StepState(**state), elements or b"." * size)


def decide(
    job: Job,
    facts: Mapping[str, StepFacts],
    other_jobs: Mapping[str, NeededStep] | None = None,
    *,
    now_ns: int = NOW_NS,
    condition: ConditionResult | None = None,
) -> dict[str, StepState]:
    """Return the new state of each step that changes, by name. `condition` is the result of every `If`."""

    def evaluate(group: TaskGroup) -> ConditionResult:
        assert condition is not None, f"the condition of {group.name} must not be evaluated"
        return condition

    return {change.name: change.state for change in decide_steps(job, facts, other_jobs or {}, now_ns, evaluate)}
