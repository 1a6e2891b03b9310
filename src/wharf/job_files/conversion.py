"""Converts job files from one language to another, and normalizes their format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from wharf.contract.model.decoding import list_submitted_fields
from wharf.contract.model.jobs.job import Job
from wharf.job_files.data_writer import (
    UnstableYaml,
    UnwritableValue,
    format_yaml,
    list_yaml_comments,
    simplify_job,
    write_document,
)
from wharf.job_files.fields import normalize_job
from wharf.job_files.hcl.parsed_job import ParsedJob
from wharf.job_files.hcl.places import format_path
from wharf.job_files.hcl_formatter import format_hcl, has_comments
from wharf.job_files.hcl_writer import write_hcl_job
from wharf.job_files.markup_jobs import (
    LOCALS,
    TEMPLATE_KEYS,
    VARIABLES,
    WRAPPER,
    has_variables,
    name_markup_errors,
)
from wharf.languages.hcl.bodies import SyntaxBody
from wharf.languages.hcl.diagnostics import DocumentErrors
from wharf.languages.hcl.documents import ParsedDocument
from wharf.languages.markup import MarkupFormat
from wharf.languages.toml_locations import TOML_TEXT

_SERVER_FIELDS: Final = frozenset({"Version", "VersionTag"})
"""Fields of stored jobs that a job file does not need, beside those that are ignored."""


class JobFormat(StrEnum):
    """A language of job files."""

    HCL = "hcl"
    YAML = "yaml"
    JSON = "json"
    TOML = "toml"


@dataclass(slots=True)
class Conversion:
    """A converted job file. `losses` are sentences that say what the text does not have."""

    text: str
    losses: list[str] = field(default_factory=list)


def format_job_file(text: str, format: JobFormat, name: str) -> str:
    """Return a job file with its format normalized. Files in JSON and TOML stay as they are. `name` is for messages.

    Raises `DocumentErrors` if the file has errors of syntax or is too large, and `UnstableYaml` if it cannot be formatted.
    """
    match format:
        case JobFormat.HCL:
            return format_hcl(text, name)
        case JobFormat.YAML:
            with name_markup_errors(text, name):
                return format_yaml(text)
        case _:
            return text


def convert_hcl_job(text: str, document: ParsedDocument, parsed: ParsedJob, target: JobFormat) -> Conversion:
    """Return a job file in HCL in another language: the job after the evaluation.

    Raises `UnwritableValue`, also if the text would contain the value of a sensitive variable.
    """
    if target is JobFormat.HCL and not document.is_json:
        return Conversion(format_hcl(text))
    _refuse_sensitive_values(parsed)
    conversion = _write_job(parsed.document, target)
    if not document.is_json and has_comments(text):
        conversion.losses.append("comments are left out")
    if _has_declarations(document):
        conversion.losses.append("variables and local values are replaced by their values")
    return conversion


def convert_data_job(
    text: str, source: JobFormat, document: Mapping[str, Any], parsed: ParsedJob, target: JobFormat
) -> Conversion:
    """Return a job file in YAML, JSON or TOML in another language. Variables and templates stay.

    Raises `UnwritableValue`.
    """
    if source is target:
        try:
            return Conversion(format_job_file(text, source, source))
        except (UnstableYaml, DocumentErrors):  # It is right, but too large to be formatted.
            return Conversion(text)
    losses = ["comments are left out"] if has_data_comments(text, source) else []
    if not has_variables(document):
        conversion = _write_job(parsed.document, target)
    elif target is not JobFormat.HCL:
        conversion = Conversion(write_document(document, MarkupFormat(target)))
    else:
        job = document.get(WRAPPER) or {key: value for key, value in document.items() if key not in TEMPLATE_KEYS}
        written = write_hcl_job(
            normalize_job(job).document,
            variables=document.get(VARIABLES) or {},
            local_values=document.get(LOCALS) or {},
        )
        conversion = Conversion(written.text, _describe_lost_paths(written.lost_paths))
    conversion.losses += losses
    return conversion


def _refuse_sensitive_values(parsed: ParsedJob) -> None:
    """Raise `UnwritableValue` if a field of the job comes from a sensitive variable: a file must not contain its value."""
    if parsed.sensitive_paths:
        path = parsed.spell_path(format_path(parsed.sensitive_paths[0]))
        names = ", ".join(sorted(parsed.hidden.names))
        raise UnwritableValue(
            f"{path} comes from a sensitive variable ({names}), and the result would contain its value: set the field from "
            "a variable of the cluster with a template, or declare sensitive = false"
        )


def has_data_comments(text: str, format: JobFormat) -> bool:
    """Return whether a file in YAML, JSON or TOML has comments."""
    if format is JobFormat.TOML:
        return "#" in TOML_TEXT.sub("", text)
    return format is JobFormat.YAML and "#" in text and bool(list_yaml_comments(text))


def _write_job(document: Mapping[str, Any], target: JobFormat) -> Conversion:
    """Return a job in a language, without the fields that only servers set."""
    ignored = list_submitted_fields(Job).ignored_names | _SERVER_FIELDS
    job = {name: value for name, value in document.items() if name not in ignored}
    if target is JobFormat.HCL:
        written = write_hcl_job(job)
        return Conversion(written.text, _describe_lost_paths(written.lost_paths))
    simplified = simplify_job(job, has_durations=target is not JobFormat.JSON)
    return Conversion(write_document(simplified, MarkupFormat(target)))


def _describe_lost_paths(paths: list[str]) -> list[str]:
    return [f"HCL cannot express {path}: it is left out" for path in paths]


def _has_declarations(document: ParsedDocument) -> bool:
    """Return whether a file in HCL declares variables or local values."""
    tree = document.tree
    kinds = (
        [block.type for block in tree.blocks]
        if isinstance(tree, SyntaxBody)
        else [each.key for each in tree.properties]
    )
    return any(kind in ("variable", "variables", "locals") for kind in kinds)
