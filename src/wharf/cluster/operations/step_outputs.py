"""Reads the texts that the steps of a run have left for later steps: for their allocations, and for the API."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import read_element_states
from wharf.cluster.state.tables import STEP_OUTPUTS
from wharf.contract.model.jobs.array_attempts import ElementStates
from wharf.contract.model.jobs.conditions import has_each_need
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_outputs import (
    MAX_SENT_OUTPUT_BYTES,
    ElementOutputs,
    FindOutputs,
    StepOutputsView,
    list_needed_steps,
    list_output_names,
    list_references,
    select_outputs,
)


def read_outputs(
    snapshot: Replica, job: Job, group: str, elements: ElementStates | None = None
) -> dict[int, ElementOutputs]:
    """Return the outputs of the elements of a step that have ended, by index."""
    states = elements if elements is not None else read_element_states(snapshot, job, group)
    return select_outputs(states, make_outputs_finder(snapshot, job))


def make_outputs_finder(snapshot: Replica, job: Job) -> FindOutputs:
    """Return the function that finds the stored outputs of a step in an attempt."""
    return lambda attempt, group: snapshot.get(STEP_OUTPUTS, job.namespace, job.id, attempt, group)


def build_outputs_view(snapshot: Replica, job: Job, group: str) -> StepOutputsView:
    """Return what the API shows of the outputs of a step."""
    return StepOutputsView(group=group, elements=tuple(read_outputs(snapshot, job, group).values()))


def collect_step_outputs(snapshot: Replica, job: Job, group: TaskGroup, index: int) -> dict[str, dict[str, str]]:
    """Return the texts of earlier steps that an element of a step receives, by the names of step and text.

    If they have more than `MAX_SENT_OUTPUT_BYTES`, those to which the step refers come first, then those of the nearest steps.
    """
    if not any(each.outputs is not None for each in job.groups):
        return {}
    found = list(_iterate_texts(snapshot, job, group, index))
    if sum(len(text.encode()) for _, _, text in found) > MAX_SENT_OUTPUT_BYTES:
        referenced = frozenset(list_references(msgspec.json.encode(group).decode()))
        found.sort(key=lambda each: f"{each[0]}.{each[1]}" not in referenced)
    return _take_first(found)


def _iterate_texts(snapshot: Replica, job: Job, group: TaskGroup, index: int) -> Iterator[tuple[str, str, str]]:
    """Yield each text that the step may use as the name of its step, its own name and the text, the nearest step first."""
    for name in list_needed_steps(job, group):
        needed = job.find_group(name)
        names = list_output_names(needed)
        if needed is None or not names:
            continue
        is_single = needed.array is None or needed.array.element_count == 1
        if not is_single and not has_each_need(group, name):
            continue
        outputs = read_outputs(snapshot, job, name).get(0 if is_single else index)
        for each in names:
            yield name, each, outputs.texts.get(each, "") if outputs is not None else ""


def _take_first(texts: Iterable[tuple[str, str, str]]) -> dict[str, dict[str, str]]:
    """Return the texts that fit in `MAX_SENT_OUTPUT_BYTES` together."""
    selected: dict[str, dict[str, str]] = {}
    remaining = MAX_SENT_OUTPUT_BYTES
    for step, name, text in texts:
        size = len(text.encode())
        if size <= remaining:
            remaining -= size
            selected.setdefault(step, {})[name] = text
    return selected


def find_texts_of_step(states: ElementStates, find_outputs: FindOutputs) -> Mapping[str, str]:
    """Return the texts of a step with one element; empty if it has not ended."""
    outputs = select_outputs(states, find_outputs).get(0)
    return outputs.texts if outputs is not None else {}
