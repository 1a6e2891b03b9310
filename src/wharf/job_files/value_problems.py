"""Problems of the values in a job file that has other errors too, so that its author sees all errors in one run.

A file without other errors goes to a server, which has the same rules and knows the cluster (record 0274). A problem that another
error of the file may have caused is left out here.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from wharf.contract.model.decoding import DecodingError, convert_object
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.defaults import MAX_JOB_PRIORITY, JobSettings
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.validation import ValidationProblem, check_known_drivers, validate_job
from wharf.job_files.hcl.parsed_job import ParsedJob
from wharf.job_files.hcl.places import FilePath, find_path_value, parse_path
from wharf.languages.hcl.diagnostics import Diagnostic, DiagnosticList

MAX_DECODING_ATTEMPTS: Final = 3
"""The attempts to decode a job, each without the values that the one before refused."""
_SETTINGS: Final = JobSettings(
    region="global",
    node_pool="default",
    default_priority=50,
    max_priority=MAX_JOB_PRIORITY,
    max_count=0,
    memory_oversubscription=True,
    max_source_bytes=0,
    versions_kept=1,
)
"""Settings that refuse nothing that a server may accept."""
_REFERENCES: Final = ("PortLabel", "Label", "ports", "VolumeMounts", "Volume")
"""Fields that name another part of the job. An error in that part may be why the name is unknown."""


def add_value_problems(diagnostics: DiagnosticList, parsed: ParsedJob) -> None:
    """Add the problems of values to the errors of the file, but those that one of the errors may have caused."""
    job = _decode_job(parsed.document)
    if job is None or not diagnostics.diagnostics:
        return
    job = canonicalize_job(job, _SETTINGS)
    problems = (*validate_job(job, _SETTINGS).problems, *check_known_drivers(job, announced=()).problems)
    earlier = tuple(diagnostics.diagnostics)
    for problem in problems:
        path = parse_path(problem.path)
        if "Config" in path or "Templates" in path or not _is_independent(problem, path, parsed, earlier):
            continue  # `task_problems` has those of options and templates.
        place = parsed.find_place(problem.path)
        name = parsed.spell_path(parsed.cut_path(problem.path))
        message, fix = (parsed.hide_message(problem.path, text) for text in (problem.message, problem.fix))
        diagnostics.add(place.source, place.start, place.end, f"{name}: {message}", fix)


def _decode_job(document: Mapping[str, Any]) -> Job | None:
    """Return the job of a document without the values that cannot be decoded, or `None` if too little is left."""
    rest = copy.deepcopy(dict(document))
    for _ in range(MAX_DECODING_ATTEMPTS):
        try:
            return convert_object(Job, rest).value
        except DecodingError as error:
            for problem in error.problems:
                _delete(rest, parse_path(problem.path))
    return None


def _delete(document: Any, path: FilePath) -> None:
    """Delete a value of a document."""
    parent = find_path_value(document, path[:-1])
    if isinstance(parent, dict):
        parent.pop(path[-1], None)
    elif isinstance(parent, list) and isinstance(path[-1], int) and path[-1] < len(parent):
        parent.pop(path[-1])


def _is_independent(
    problem: ValidationProblem, path: FilePath, parsed: ParsedJob, errors: Sequence[Diagnostic]
) -> bool:
    """Return whether a problem is about a value that the file has, and that no error is about."""
    value = find_path_value(parsed.document, path)
    if value in (None, "", [], {}) or (isinstance(value, str) and "${" in value) or problem.path not in parsed.places:
        return False
    place = parsed.find_place(problem.path)
    if any(
        error.place.source.name == place.source.name
        and (error.place.start < place.end and place.start < error.place.end)
        for error in errors
    ):
        return False
    return not any(step in _REFERENCES for step in path) or not _has_unreliable_names(parsed, errors)


def _has_unreliable_names(parsed: ParsedJob, errors: Sequence[Diagnostic]) -> bool:
    """Return whether an error is one of a name, or inside of a network or volume: a port or volume may exist after all."""
    paths = {(place.source.name, place.start): path for path, place in parsed.places.items()}
    first_group = min((start for (_, start), path in paths.items() if path.startswith("TaskGroups")), default=0)
    for error in errors:
        path = paths.get((error.place.source.name, error.place.start), "")
        is_name = not path and error.place.start >= first_group
        if is_name or "Networks" in path or ".Volumes" in path:
            return True
    return False
