"""Problems of tasks that a job file shows without a server: options of drivers, and texts of templates.

Servers have the same rules for jobs that other clients submit. Here, each problem has its place in the file.
"""

from collections.abc import Mapping
from typing import Any

from wharf.contract.model.drivers.options import find_option_problems
from wharf.contract.model.jobs.validation.templates import find_syntax_problem
from wharf.job_files.hcl.parsed_job import ParsedJob
from wharf.job_files.hcl.places import FilePath, format_path, iterate_tasks
from wharf.languages.hcl.diagnostics import DiagnosticList, SourceRange


def add_task_problems(diagnostics: DiagnosticList, parsed: ParsedJob) -> None:
    """Add the problems of all tasks to those of the file. Values of a wrong type are left to the servers."""
    for path, task in iterate_tasks(parsed.document):
        _add_option_problems(diagnostics, parsed, path, task)
        templates = task.get("Templates")
        for position, template in enumerate(templates if isinstance(templates, list) else ()):
            if isinstance(template, dict):
                _add_template_problem(diagnostics, parsed, (*path, "Templates", position), template)


def _add_option_problems(
    diagnostics: DiagnosticList, parsed: ParsedJob, path: FilePath, task: Mapping[str, Any]
) -> None:
    """Add an error for each option that the driver of a task does not have, or whose value has a wrong type."""
    driver, config = task.get("Driver"), task.get("Config")
    if not isinstance(driver, str) or not isinstance(config, dict):
        return
    for problem in find_option_problems(driver, config):
        field_path = format_path((*path, "Config", *problem.path))
        place = parsed.find_place(field_path)
        if problem.is_unknown:
            place = _find_name_place(place, str(problem.path[-1]))
        message, fix = problem.message, problem.fix
        has_sensitive_name = parsed.cut_path(field_path) != field_path
        if has_sensitive_name or (not problem.is_unknown and parsed.is_sensitive(field_path)):
            message, fix = f"the driver {driver} refuses the value, which comes from a sensitive variable", ""
        diagnostics.add(place.source, place.start, place.end, message, fix)


def _add_template_problem(
    diagnostics: DiagnosticList, parsed: ParsedJob, path: FilePath, template: Mapping[str, Any]
) -> None:
    """Add an error if the text of a template cannot be parsed."""
    text, left, right = (template.get(name) or "" for name in ("EmbeddedTmpl", "LeftDelim", "RightDelim"))
    if not (isinstance(text, str) and isinstance(left, str) and isinstance(right, str)):
        return
    problem = find_syntax_problem(text, left, right)
    if problem:
        field_path = format_path((*path, "EmbeddedTmpl"))
        place = parsed.find_place(field_path)
        diagnostics.add(place.source, place.start, place.end, parsed.hide_message(field_path, problem))


def _find_name_place(place: SourceRange, name: str) -> SourceRange:
    """Return the place of the name of an argument, which is on the line of its value."""
    start = place.source.text.rfind(name, place.source.get_line_start(place.start)[1], place.end)
    return SourceRange(place.source, start, start + len(name)) if start >= 0 else place
