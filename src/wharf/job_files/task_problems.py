"""Problems of tasks that a job file shows without a server: options of drivers, and texts of templates.

Servers have the same rules for jobs that other clients submit. Here, each problem has its place in the file.
"""

import re
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from wharf.contract.model.drivers.options import find_option_problems
from wharf.contract.model.jobs.validation.templates import LEFT_DELIMITER, describe_template_place, find_syntax_errors
from wharf.job_files.hcl.parsed_job import ParsedJob
from wharf.job_files.hcl.places import FilePath, format_path, iterate_tasks
from wharf.job_files.text_places import find_text_place
from wharf.languages.hcl.diagnostics import MAX_DIAGNOSTICS, Diagnostic, DiagnosticList, SourceRange

_TASK_PATH: Final = re.compile(r"(TaskGroups\[\d+\]\.Tasks\[\d+\])(?:\.Config\b)?")


def add_task_problems(diagnostics: DiagnosticList, parsed: ParsedJob) -> None:
    """Add the problems of all tasks to those of the file. Values of a wrong type are left to the servers."""
    broken = _BrokenParts(tuple(diagnostics.diagnostics), parsed)
    for path, task in iterate_tasks(parsed.document):
        _add_option_problems(diagnostics, parsed, path, task, broken)
        templates = task.get("Templates")
        for position, template in enumerate(templates if isinstance(templates, list) else ()):
            if isinstance(template, dict):
                _add_template_problems(diagnostics, parsed, (*path, "Templates", position), template)


def _add_option_problems(
    diagnostics: DiagnosticList, parsed: ParsedJob, path: FilePath, task: Mapping[str, Any], broken: "_BrokenParts"
) -> None:
    """Add an error for each option that the driver of a task does not have or needs, or whose value has a wrong type."""
    driver, config = task.get("Driver"), task.get("Config") or {}
    if not isinstance(driver, str) or not isinstance(config, dict):
        return
    reported: set[FilePath] = set()
    # An unknown name explains why the option that it is meant for is missing, so it is reported first.
    for problem in sorted(find_option_problems(driver, config), key=lambda problem: not problem.is_unknown):
        if problem.is_ignored:
            continue  # Servers warn of it.
        if problem.path in reported or (problem.missing and broken.explains(path, problem.missing)):
            continue
        reported.add(problem.path)
        field_path = format_path((*path, "Config", *problem.path))
        place = parsed.find_place(field_path)
        if problem.is_unknown:
            place = _find_name_place(place, str(problem.path[-1]))
        message, fix = problem.message, problem.fix
        has_sensitive_name = parsed.cut_path(field_path) != field_path
        if has_sensitive_name or (not problem.is_unknown and parsed.is_sensitive(field_path)):
            message, fix = f"the driver {driver} refuses the value, which comes from a sensitive variable", ""
        diagnostics.add(place.source, place.start, place.end, message, fix)


def _add_template_problems(
    diagnostics: DiagnosticList, parsed: ParsedJob, path: FilePath, fields: Mapping[str, Any]
) -> None:
    """Add an error for each mistake in the text of a template, at its place in the file."""
    text, left, right = (fields.get(name) or "" for name in ("EmbeddedTmpl", "LeftDelim", "RightDelim"))
    if not (isinstance(text, str) and isinstance(left, str) and isinstance(right, str)):
        return
    value: SourceRange | None = None
    field_path = format_path((*path, "EmbeddedTmpl"))
    for error in find_syntax_errors(text, left, right, max_errors=MAX_DIAGNOSTICS):
        value = value or parsed.find_place(field_path)
        place = find_text_place(text, error.offset, left or LEFT_DELIMITER, value)
        message = error.problem if place is not None else f"{describe_template_place(error)}: {error.problem}"
        place = place or value
        message, fix = parsed.hide_message(field_path, message), parsed.hide_message(field_path, error.fix)
        diagnostics.add(place.source, place.start, place.end, message, fix)


class _BrokenParts:
    """The tasks, and configs of tasks, in which a file has errors. They may be why an option of a driver is missing."""

    def __init__(self, errors: Sequence[Diagnostic], parsed: ParsedJob) -> None:
        self._errors = errors
        self._parsed = parsed
        self._paths: frozenset[str] | None = None

    def explains(self, task: FilePath, option: str) -> bool:
        """Return whether an option may be missing only because of an error in the config of the task.

        If the task has no config, it may be any error in the task.
        """
        if not self._errors:
            return False
        path, places = format_path(task), self._parsed.places
        config = f"{path}.Config"
        if f"{config}.{option}" in places:
            return True  # The file has the option, and its value has an error.
        if self._paths is None:
            self._paths = frozenset(self._list_paths())
        return (config if config in places else path) in self._paths

    def _list_paths(self) -> Iterator[str]:
        """Yield the path of the task, and of its config, for each error: an error is in the last part that begins before it."""
        starts = sorted((place.source.name, place.start, path) for path, place in self._parsed.places.items())
        for error in self._errors:
            name, start = error.place.source.name, error.place.start
            at = bisect(starts, (name, start), key=lambda part: part[:2])
            match = _TASK_PATH.match(starts[at - 1][2]) if at and starts[at - 1][0] == name else None
            if match is not None:
                yield match[1]
                yield match[0]


def _find_name_place(place: SourceRange, name: str) -> SourceRange:
    """Return the place of the name of an argument, which is on the line of its value."""
    start = place.source.text.rfind(name, place.source.get_line_start(place.start)[1], place.end)
    return SourceRange(place.source, start, start + len(name)) if start >= 0 else place
