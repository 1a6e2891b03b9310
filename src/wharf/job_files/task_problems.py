"""Problems of tasks that a job file shows without a server: options of drivers, and texts of templates.

Servers have the same rules for jobs that other clients submit. Here, each problem has its place in the file.
"""

from bisect import bisect
from collections.abc import Mapping, Sequence
from typing import Any

from wharf.contract.model.drivers.options import find_option_problems
from wharf.contract.model.jobs.validation.templates import LEFT_DELIMITER, describe_template_place, find_syntax_errors
from wharf.job_files.hcl.parsed_job import ParsedJob
from wharf.job_files.hcl.places import FilePath, format_path, iterate_tasks
from wharf.job_files.text_places import find_text_place
from wharf.languages.hcl.diagnostics import MAX_DIAGNOSTICS, Diagnostic, DiagnosticList, SourceRange


def add_task_problems(diagnostics: DiagnosticList, parsed: ParsedJob) -> None:
    """Add the problems of all tasks to those of the file. Values of a wrong type are left to the servers."""
    for path, task in iterate_tasks(parsed.document):
        _add_option_problems(diagnostics, parsed, path, task)
        templates = task.get("Templates")
        for position, template in enumerate(templates if isinstance(templates, list) else ()):
            if isinstance(template, dict):
                _add_template_problems(diagnostics, parsed, (*path, "Templates", position), template)


def _add_option_problems(
    diagnostics: DiagnosticList, parsed: ParsedJob, path: FilePath, task: Mapping[str, Any]
) -> None:
    """Add an error for each option that the driver of a task does not have or needs, or whose value has a wrong type."""
    driver, config = task.get("Driver"), task.get("Config") or {}
    if not isinstance(driver, str) or not isinstance(config, dict):
        return
    reported: set[FilePath] = set()
    errors = tuple(diagnostics.diagnostics)
    # An unknown name explains why the option that it is meant for is missing, so it is reported first.
    for problem in sorted(find_option_problems(driver, config), key=lambda problem: not problem.is_unknown):
        if problem.is_ignored:
            continue  # Servers warn of it.
        if problem.path in reported or (problem.missing and _is_consequence(errors, parsed, path, problem.missing)):
            continue
        reported.add(problem.path)
        place = parsed.find_place(format_path((*path, "Config", *problem.path)))
        if problem.is_unknown:
            place = _find_name_place(place, str(problem.path[-1]))
        diagnostics.add(place.source, place.start, place.end, problem.message, problem.fix)


def _add_template_problems(
    diagnostics: DiagnosticList, parsed: ParsedJob, path: FilePath, fields: Mapping[str, Any]
) -> None:
    """Add an error for each mistake in the text of a template, at its place in the file."""
    text, left, right = (fields.get(name) or "" for name in ("EmbeddedTmpl", "LeftDelim", "RightDelim"))
    if not (isinstance(text, str) and isinstance(left, str) and isinstance(right, str)):
        return
    value: SourceRange | None = None
    for error in find_syntax_errors(text, left, right, max_errors=MAX_DIAGNOSTICS):
        value = value or parsed.find_place(format_path((*path, "EmbeddedTmpl")))
        place = find_text_place(text, error.offset, left or LEFT_DELIMITER, value)
        message = error.problem if place is not None else f"{describe_template_place(error)}: {error.problem}"
        place = place or value
        diagnostics.add(place.source, place.start, place.end, message, error.fix)


def _is_consequence(errors: Sequence[Diagnostic], parsed: ParsedJob, path: FilePath, name: str) -> bool:
    """Return whether an option may be missing only because of an error in the config of the task at `path`.

    Without a config, it may be any error in the task. An error is in the last object that begins before it.
    """
    if not errors:
        return False
    owner = format_path((*path, "Config"))
    if owner not in parsed.places:
        owner = format_path(path)
    if f"{owner}.{name}" in parsed.places:
        return True  # The file has it, and its value has an error.
    source = parsed.find_place(owner).source
    starts = sorted((place.start, each) for each, place in parsed.places.items() if place.source is source)
    for error in errors:
        at = bisect(starts, error.place.start, key=lambda start: start[0]) if error.place.source is source else 0
        if at and starts[at - 1][1].startswith(owner):
            return True
    return False


def _find_name_place(place: SourceRange, name: str) -> SourceRange:
    """Return the place of the name of an argument, which is on the line of its value."""
    start = place.source.text.rfind(name, place.source.get_line_start(place.start)[1], place.end)
    return SourceRange(place.source, start, start + len(name)) if start >= 0 else place
