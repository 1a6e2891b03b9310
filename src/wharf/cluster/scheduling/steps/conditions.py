"""Evaluates the condition `If` of a step. A condition that cannot be evaluated is an error, never true.

It is evaluated in the write that ends the last need of the step, so it may take only a few milliseconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from wharf.cluster.scheduling.steps.decider import ConditionEvaluator, ConditionResult
from wharf.contract.model.jobs.conditions import (
    ConditionValues,
    compile_condition,
    find_condition_problem,
    list_condition_names,
    list_metadata_names,
)
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_outputs import iterate_needed_steps, list_output_names
from wharf.contract.model.jobs.step_states import limit_detail_bytes
from wharf.languages.filters import FilterError

MAX_CONDITION_STEPS: Final = 2_000
"""Steps of the filter language that one evaluation may take, about 2 ms. A run may decide 500 conditions in one write."""
MAX_VALUE_BYTES: Final = 100
MAX_DETAIL_BYTES: Final = 500
"""UTF-8 bytes of one value, and of the text with all of them, that are stored with the state of a step. A write has at most
1.4 MB, and the states of 500 steps of a run are one record: with more than 262 steps, a text has fewer bytes."""

FindTexts = Callable[[str], Mapping[str, str]]
"""Returns the outputs of a step that has ended, by name. A declared output that its program did not write is missing."""


def make_condition_evaluator(job: Job, find_texts: FindTexts) -> ConditionEvaluator:
    """Return the function that evaluates the conditions of the steps of a job."""

    def evaluate(group: TaskGroup) -> ConditionResult:
        return evaluate_condition(job, group, find_texts)

    return evaluate


def evaluate_condition(job: Job, group: TaskGroup, find_texts: FindTexts) -> ConditionResult:
    """Return whether the condition of a step holds, with the values that decided, or why it cannot be evaluated."""
    max_bytes = limit_detail_bytes(MAX_DETAIL_BYTES, len(job.groups))
    try:
        condition = compile_condition(group.condition)
        names = list_condition_names(condition)
        needed = _find_read_steps(job, group, names)
        if problem := find_condition_problem(job, group, names, needed.__contains__):
            return _make_error(problem, max_bytes)
        values = _read_values(job, needed, find_texts)
        is_true = condition.accepts_within(values, MAX_CONDITION_STEPS)
    except FilterError as error:
        return _make_error(error.text, max_bytes)
    return ConditionResult(is_true, _describe_values(values, names, max_bytes))


def _make_error(problem: str, max_bytes: int) -> ConditionResult:
    return ConditionResult(False, _cut_text(f"If cannot be evaluated: {problem}", max_bytes), is_error=True)


def _cut_text(text: str, max_bytes: int) -> str:
    """Return the text, or its beginning with an ellipsis, in at most this number of UTF-8 bytes."""
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) <= max_bytes:
        return text
    ellipsis = "…"
    return encoded[: max_bytes - len(ellipsis.encode())].decode("utf-8", "ignore") + ellipsis


def _find_read_steps(job: Job, group: TaskGroup, names: Sequence[tuple[str, ...]]) -> dict[str, None]:
    """Return the steps that a step needs and whose outputs its condition reads."""
    if ("steps",) in names:
        return dict.fromkeys(iterate_needed_steps(job, group))
    named = {parts[1] for parts in names if parts[0] == "steps"}
    found = (name for name in iterate_needed_steps(job, group) if name in named)
    return dict.fromkeys(islice(found, len(named)))  # Most conditions name the nearest steps.


def _read_values(job: Job, needed_steps: Iterable[str], find_texts: FindTexts) -> ConditionValues:
    """Return the record that the condition tests."""
    steps: dict[str, Mapping[str, str]] = {}
    for name in needed_steps:
        needed = job.find_group(name)
        if needed is not None and (needed.array is None or needed.array.element_count == 1):
            steps[name] = dict.fromkeys(list_output_names(needed), "") | dict(find_texts(name))
    return ConditionValues(meta=dict.fromkeys(list_metadata_names(job), "") | (job.meta or {}), steps=steps)


def _describe_values(values: ConditionValues, names: list[tuple[str, ...]], max_bytes: int) -> str:
    """Return the values that the condition read, such as `steps.build.version = "1.2", meta.env = "prod"`."""
    texts = []
    for parts in names:
        value: object = values.meta if parts[0] == "meta" else values.steps
        for part in parts[1:]:
            value = value.get(part, {}) if isinstance(value, Mapping) else value
        if isinstance(value, str):
            texts.append(f'{".".join(parts)} = "{_cut_text(value, MAX_VALUE_BYTES)}"')
        elif isinstance(value, Mapping):
            texts.append(f"{'.'.join(parts)} has {len(value)} entries")
    return _cut_text(", ".join(texts), max_bytes)
