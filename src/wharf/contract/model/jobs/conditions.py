"""The condition `If` of a step: an expression of the filter language over the metadata of the job and outputs of earlier steps.

Names are checked when the job is submitted and again when the condition is evaluated. The evaluation is in
`wharf.cluster.scheduling.steps.conditions`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_outputs import list_output_names
from wharf.languages.filters import Filter, FilterError, compile_filter, iterate_record_selectors
from wharf.languages.suggestions import find_nearest_name

NO_MATCH: Final = "no match found, expected: "
"""How errors of the filter language begin that name what is expected."""
MAX_SHOWN_CHARS: Final = 20
"""Characters of a condition that a message repeats."""
MAX_PROBLEM_NAME_CHARS: Final = 100
"""Characters of a name in a message; limits the size of the stored cause."""


class ConditionValues(msgspec.Struct, frozen=True):
    """The record that a condition tests."""

    meta: Mapping[str, str]
    """The metadata of the job, with that of its dispatch."""
    steps: Mapping[str, Mapping[str, str]]
    """The outputs of the steps that the step needs, by the names of step and output."""


def compile_condition(text: str) -> Filter:
    """Return a compiled condition. Raises `FilterError` if it is not an expression over `meta` and `steps`."""
    return compile_filter(text, ConditionValues)


def describe_syntax_error(text: str, error: FilterError) -> str:
    """Return what is wrong with a condition. The texts of the filter language are those that clients of the API know."""
    reason = error.text.partition("): ")[2] or error.text
    rest = text[error.offset :].strip()
    if len(rest) > MAX_SHOWN_CHARS:
        rest = f"{rest[:MAX_SHOWN_CHARS]}…"
    if "couldn't find key" in reason:
        return f'"{rest}" begins with an unknown name; a condition reads meta.NAME and steps.GROUP.NAME'
    if not reason.startswith(NO_MATCH):
        return reason
    expected, separator, hint = reason.removeprefix(NO_MATCH).partition("; ")
    place = f'"{rest}" is' if rest else "it ends"
    return f"{place} where {expected.replace('a string', 'a text in quotes')} is expected{separator}{hint}"


def list_condition_names(condition: Filter) -> list[tuple[str, ...]]:
    """Return the values that a condition reads, each once, such as `("steps", "build", "version")`."""
    return list(dict.fromkeys(selector.parts for selector in iterate_record_selectors(condition.tree)))


def list_metadata_names(job: Job) -> list[str]:
    """Return the names of the metadata that a run has, also of those that its dispatch may leave out."""
    parameterized = job.parameterized_job
    dispatched: Iterable[str] = ()
    if parameterized is not None:
        dispatched = (*(parameterized.meta_required or ()), *(parameterized.meta_optional or ()))
    return list(dict.fromkeys((*(job.meta or {}), *dispatched)))


def find_condition_problem(
    job: Job, group: TaskGroup, names: Iterable[tuple[str, ...]], is_needed: Callable[[str], bool]
) -> str:
    """Return what is wrong with the first unknown name that a condition reads; empty if it knows all.

    `is_needed` returns whether the step needs another one.
    """
    for parts in names:
        if parts[0] == "meta" and len(parts) > 1:
            problem = _find_problem_of_metadata(job, parts[1])
        elif parts[0] == "steps" and len(parts) > 1:
            problem = find_output_problem(job, group, is_needed, parts[1], parts[2] if len(parts) > 2 else None)
        else:
            problem = ""
        if problem:
            return problem
    return ""


def _find_problem_of_metadata(job: Job, name: str) -> str:
    known = list_metadata_names(job)
    if name in known:
        return ""
    return f'the job has no metadata "{_cut(name)}"{_suggest(name, known)}'


def find_output_problem(
    job: Job,
    group: TaskGroup,
    is_needed: Callable[[str], bool],
    step: str,
    name: str | None,
    *,
    may_be_element: bool = False,
) -> str:
    """Return why a step cannot use an output of another step; empty if it can.

    `is_needed` returns whether the step needs another one. `name` of `None`: the step alone is named. `may_be_element`: each element may use the output of the element with its
    index.
    """
    needed = job.find_group(step)
    if needed is None:
        return f'no step has the name "{_cut(step)}"{_suggest(step, [each.name for each in job.groups])}'
    if not is_needed(step):
        return f'the step does not need "{_cut(step)}": add it to Depends'
    names = list_output_names(needed)
    if name is not None and name not in names:
        return f'Outputs.Text of the step "{_cut(step)}" does not name "{_cut(name)}"{_suggest(name, names)}'
    is_array = needed.array is not None and needed.array.element_count != 1
    if is_array and not (may_be_element and has_each_need(group, step)):
        advice = ": only a step with a need with Each can use them" if may_be_element else ""
        return f'"{_cut(step)}" is an array, whose elements have outputs of their own{advice}'
    return ""


def has_each_need(group: TaskGroup, step: str) -> bool:
    """Return whether each element of a step needs the element with its index of another step."""
    return any(need.on == step and need.each for need in group.depends or ())


def _suggest(name: str, known: Iterable[str]) -> str:
    nearest = find_nearest_name(name, known)
    return f'; did you mean "{_cut(nearest)}"?' if nearest is not None else ""


def _cut(name: str) -> str:
    return name[:MAX_PROBLEM_NAME_CHARS]
