"""Rules for the outputs of steps: their names, and the names in conditions and references of the steps that use them."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from wharf.contract.model.decoding import format_path
from wharf.contract.model.jobs.conditions import (
    compile_condition,
    describe_syntax_error,
    find_condition_problem,
    find_output_problem,
    list_condition_names,
)
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.step_outputs import (
    MAX_OUTPUT_ELEMENTS,
    NeededSteps,
    build_variable_name,
    list_output_names,
    list_references,
)
from wharf.contract.model.jobs.validation.findings import ValidationReport
from wharf.languages.filters import FilterError

MAX_TEXT_NAMES: Final = 100
"""Text outputs of one step. Each becomes a variable of later steps."""
_NAME: Final = re.compile(r"[A-Za-z0-9_]{1,128}")
_RESOLVED_FIELDS: Final = ("Env", "Config", "Templates", "Artifacts", "Services", "Meta", "Constraints", "Affinities")
"""Fields of a task in which references are looked for."""


_UNRESOLVED_FIELDS: Final = frozenset({"EmbeddedTmpl"})
"""Texts whose references no node replaces: a template reads the variables of the task."""


def check_step_outputs(job: Job, report: ValidationReport) -> None:
    """Add each problem of text outputs, and of conditions and references that use them, to the report.

    It ends when the report is full: the search for a similar name takes long.
    """
    needed = NeededSteps(job)
    _check_variables(job, report)
    for position, group in enumerate(job.groups):
        if report.is_full:
            return
        path = f"TaskGroups[{position}]"
        is_needed = partial(needed.has, group.name)
        _check_names(group, path, report)
        if group.condition:
            _check_condition(job, group, path, is_needed, report)
        _check_references(job, group, position, is_needed, report)


def _check_names(group: TaskGroup, path: str, report: ValidationReport) -> None:
    names = list_output_names(group)
    if not names:
        return
    if len(names) > MAX_TEXT_NAMES:
        report.add_error(
            f"{path}.Outputs.Text", f"Text has {len(names)} names; a step has at most {MAX_TEXT_NAMES} text outputs"
        )
    seen: set[str] = set()
    for position, name in enumerate(names):
        if not _NAME.fullmatch(name):
            report.add_error(
                f"{path}.Outputs.Text[{position}]",
                f'"{name[:40]}" is not a name of an output',
                "use 1 to 128 letters, digits and _",
            )
        elif name in seen:
            report.add_error(f"{path}.Outputs.Text[{position}]", f'Text has "{name}" twice', "remove one")
        seen.add(name)
    if group.array is not None and group.array.element_count > MAX_OUTPUT_ELEMENTS:
        report.add_error(
            f"{path}.Outputs.Text",
            f"An array with Outputs.Text has at most {MAX_OUTPUT_ELEMENTS:,} elements; this one has "
            f"{group.array.element_count:,}",
            "write results to files below alloc/, and keep them with Outputs.Keep",
        )


def _check_variables(job: Job, report: ValidationReport) -> None:
    """Add an error for each text whose variable is that of another text: `a-b` and `a_b` have the same variables."""
    owners: dict[str, str] = {}
    for position, group in enumerate(job.groups):
        names = list_output_names(group)[:MAX_TEXT_NAMES]
        prefix = build_variable_name(group.name, "")
        for number, name in enumerate(names):
            if report.is_full:
                return
            owner = owners.setdefault(f"{prefix}{name.upper()}", f"{group.name}.{name}")
            if owner != f"{group.name}.{name}":
                report.add_error(
                    f"TaskGroups[{position}].Outputs.Text[{number}]",
                    f'"{group.name}.{name[:40]}" and "{owner[:80]}" would share the variable '
                    f"WHARF_{prefix}{name[:40].upper()}",
                    "rename a step or a text",
                )


def _check_condition(
    job: Job, group: TaskGroup, path: str, is_needed: Callable[[str], bool], report: ValidationReport
) -> None:
    """Add an error if a condition names something unknown. Whether its text is an expression at all is checked elsewhere."""
    try:
        condition = compile_condition(group.condition)
    except FilterError as error:
        is_order = error.text.endswith("there is no comparison by order")
        fix = "let a program compare, and test its text: steps.GROUP.NAME == yes" if is_order else ""
        problem = describe_syntax_error(group.condition, error)
        report.add_error(f"{path}.If", f"If is not a valid condition: {problem}", fix)
        return
    if problem := find_condition_problem(job, group, list_condition_names(condition), is_needed):
        report.add_error(f"{path}.If", f"If cannot be evaluated: {problem}")


def _check_references(
    job: Job, group: TaskGroup, position: int, is_needed: Callable[[str], bool], report: ValidationReport
) -> None:
    """Add an error for each text with a reference to an output that the step cannot use."""
    for number, task in enumerate(group.tasks or ()):
        if b"steps." not in msgspec.json.encode(task):
            continue
        document = msgspec.to_builtins(task)
        known: set[str] = set()  # A text may repeat one thousands of times.
        for name in _RESOLVED_FIELDS:
            for steps, text in _iterate_texts(document.get(name), [name]):
                problem = _find_first_problem(job, group, is_needed, text, known)
                if problem:
                    report.add_error(format_path(["TaskGroups", position, "Tasks", number, *steps]), problem)
                if report.is_full:
                    return


def _find_first_problem(
    job: Job, group: TaskGroup, is_needed: Callable[[str], bool], text: str, known: set[str]
) -> str:
    """Return the problem of the first reference in a text that cannot be replaced; empty if all can.

    References that can be replaced are added to `known`.
    """
    for reference in list_references(text):
        if reference not in known:
            if problem := _find_problem(job, group, is_needed, reference):
                return problem
            known.add(reference)
    return ""


def _find_problem(job: Job, group: TaskGroup, is_needed: Callable[[str], bool], reference: str) -> str:
    """Return why a reference, such as `build.version`, cannot be replaced; empty if it can."""
    step, separator, name = reference.rpartition(".")
    if not separator:
        return f"${{steps.{reference[:80]}}} names no output: write ${{steps.GROUP.NAME}}"
    problem = find_output_problem(job, group, is_needed, step, name, may_be_element=True)
    return f"${{steps.{reference[:80]}}} cannot be replaced: {problem}" if problem else ""


def _iterate_texts(value: Any, path: list[str | int]) -> Iterator[tuple[list[str | int], str]]:
    """Yield each text of a document with its path."""
    match value:
        case str():
            if "${" in value:
                yield path, value
        case dict():
            for name, item in value.items():
                if name in _UNRESOLVED_FIELDS:
                    continue
                yield from _iterate_texts(item, [*path, name])
        case list() | tuple():
            for number, item in enumerate(value):
                yield from _iterate_texts(item, [*path, number])
