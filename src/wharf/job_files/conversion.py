"""Converts job files from one language to another, and normalizes their format (records 0255 and 0256)."""

import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from wharf.contract.model.decoding import list_submitted_fields
from wharf.contract.model.jobs.job import Job
from wharf.job_files.comments import (
    Comment,
    Place,
    attach_comments,
    find_markup_comments,
    insert_comments,
    list_hcl_places,
    list_markup_places,
)
from wharf.job_files.data_writer import UnstableYaml, UnwritableValue, format_yaml, simplify_job, write_document
from wharf.job_files.fields import FieldProblem, normalize_job
from wharf.job_files.hcl.parsed_job import ParsedJob
from wharf.job_files.hcl.parsing import evaluate_hcl_job, read_hcl_template
from wharf.job_files.hcl.places import FilePath, PlaceIndex, find_path_value, format_path
from wharf.job_files.hcl_formatter import find_hcl_comments, format_hcl, is_same_document
from wharf.job_files.hcl_writer import write_hcl_job
from wharf.job_files.markup_jobs import (
    LOCALS,
    TEMPLATE_KEYS,
    VARIABLES,
    WRAPPER,
    MarkupPlaces,
    check_templates,
    has_variables,
    map_markup_job,
    name_markup_errors,
    read_markup,
    refuse_other_files,
)
from wharf.languages.hcl.bodies import SyntaxBody
from wharf.languages.hcl.calls import FunctionPorts
from wharf.languages.hcl.diagnostics import (
    MAX_DIAGNOSTICS,
    DiagnosticList,
    DocumentErrors,
    HiddenValues,
    SourceFile,
)
from wharf.languages.hcl.documents import ParsedDocument, list_declared_kinds, parse_document
from wharf.languages.hcl.template_documents import Expansion
from wharf.languages.hcl.template_texts import split_template
from wharf.languages.hcl.variables import VariableInputs
from wharf.languages.markup import MarkupFormat, parse_markup
from wharf.languages.markup_errors import MarkupError

_SERVER_FIELDS: Final = frozenset({"Version", "VersionTag"})
"""Fields of stored jobs that a job file does not need, beside those that are ignored."""
MAX_SHOWN_VALUE_CHARS: Final = 80
"""A note shows the start of a longer value."""
_EDITOR_COMMENT: Final = re.compile(r"^#\s*yaml-language-server:")
"""A comment for editors of YAML, which means nothing in other languages."""
_NULL_TEMPLATE: Final = "${null}"


class JobFormat(StrEnum):
    """A language of job files."""

    HCL = "hcl"
    YAML = "yaml"
    JSON = "json"
    TOML = "toml"


@dataclass(slots=True)
class Conversion:
    """A converted job file.

    `losses` are sentences that say what the text does not have. `warnings` are those about the file, with places.
    """

    text: str
    losses: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _ReadJob:
    """What a conversion reads of a file.

    `declarations` are `variables` and `locals`. With them, the texts of the job are templates. `is_written_as_is`: the job has the
    names of its file.
    """

    job: dict[str, Any]
    declarations: dict[str, Any]
    comments: list[Comment]
    losses: list[str]
    warnings: list[str]
    is_written_as_is: bool = False


def format_job_file(text: str, format: JobFormat, name: str) -> str:
    """Return a job file with its format normalized. Files in JSON and TOML stay as they are. `name` is for messages.

    Raises `DocumentErrors` if the file is not a job file, has errors of syntax or is too large, and `UnstableYaml` if it cannot be formatted.
    """
    match format:
        case JobFormat.HCL:
            return format_hcl(text, name)
        case JobFormat.YAML:
            refuse_other_files(read_markup(text, name, MarkupFormat.YAML), SourceFile(name, text))
            with name_markup_errors(text, name):
                return format_yaml(text)
        case _:
            return text


def convert_hcl_job(
    document: ParsedDocument,
    target: JobFormat,
    inputs: VariableInputs,
    ports: FunctionPorts,
    *,
    evaluates: bool = False,
) -> Conversion:
    """Return a job file in HCL in another language. Variables and local values stay, unless `evaluates`.

    Raises `DocumentErrors`, and `UnwritableValue`.
    """
    text = document.source.text
    if target is JobFormat.HCL and not document.is_json and not evaluates:
        return Conversion(format_hcl(text, document.source.name))
    if evaluates or not _has_declarations(document):
        read = _read_hcl_values(document, evaluate_hcl_job(document, inputs, ports, checks_tasks=True))
    else:
        read = _read_hcl_template(document, inputs, ports)
    if not unicodedata.is_normalized("NFC", text):
        read.losses.append(_describe_normal_form(document.source))
    return _write(read, target, ports)


def convert_data_job(
    source: SourceFile,
    format: JobFormat,
    target: JobFormat,
    inputs: VariableInputs,
    ports: FunctionPorts,
    *,
    evaluates: bool = False,
) -> Conversion:
    """Return a job file in YAML, JSON or TOML in another language. Variables and local values stay, unless `evaluates`.

    Raises `DocumentErrors`, and `UnwritableValue`.
    """
    text = source.text
    markup = read_markup(text, source.name, MarkupFormat(format))
    losses: list[str] = []
    if not has_variables(markup.value) or evaluates:
        parsed = map_markup_job(markup, source, inputs, ports)
        if format is target and not evaluates:
            return Conversion(_format_if_stable(text, format, source.name))
        _refuse_sensitive_values(parsed)
        job, declarations, is_written_as_is = parsed.document, {}, False
        paths = parsed.places.map_file_paths() if isinstance(parsed.places, MarkupPlaces) else {}
        warnings = parsed.warnings
    else:
        if format is target:
            return Conversion(_format_if_stable(text, format, source.name))
        check_templates(markup, source, inputs, ports)
        content = markup.value
        job = content.get(WRAPPER) or {key: value for key, value in content.items() if key not in TEMPLATE_KEYS}
        declarations = {key: content.get(key) or {} for key in TEMPLATE_KEYS if key in content}
        is_written_as_is = target is not JobFormat.HCL
        places = MarkupPlaces(markup, source)
        if not is_written_as_is:
            prefix = (WRAPPER,) if WRAPPER in content else ()
            normalized = normalize_job(job, markup.format)
            losses = _list_computed_parts(normalized.problems, job, places, prefix)
            job = normalized.document
            places.set_origins(normalized, prefix)
        paths = places.map_file_paths()
        warnings = []
    ranges = find_markup_comments(text, markup)
    comments = attach_comments(text, ranges, list_markup_places(text, markup, paths)) if ranges else []
    read = _ReadJob(job, declarations, comments, losses, warnings, is_written_as_is)
    if target is JobFormat.HCL and not unicodedata.is_normalized("NFC", text):
        read.losses.append(_describe_normal_form(source))
    return _write(read, target, ports)


def _list_computed_parts(
    problems: Sequence[FieldProblem], job: Mapping[str, Any], places: MarkupPlaces, prefix: FilePath
) -> list[str]:
    """Return a note for each list, comparison and field name that a template computes: HCL has none.

    Raises `DocumentErrors` for all other problems.
    """
    diagnostics = DiagnosticList()
    notes: list[str] = []
    for problem in problems:
        text = problem.path[-1] if problem.is_name else find_path_value(job, problem.path)
        if isinstance(text, str) and any(is_code for is_code, _ in split_template(text)):
            notes.append(f"HCL cannot express {format_path(problem.path)}, which a template computes: it is left out")
        elif len(diagnostics.diagnostics) == MAX_DIAGNOSTICS:
            diagnostics.omitted_count += 1  # To locate all of 80,000 takes a second.
        else:
            place = places.get_range((*prefix, *problem.path), is_name=problem.is_name)
            diagnostics.add(*place, problem.message, problem.fix)
    diagnostics.raise_if_any()
    return notes


def _format_if_stable(text: str, format: JobFormat, name: str) -> str:
    try:
        return format_job_file(text, format, name)
    except (UnstableYaml, DocumentErrors):  # It is right, but too large to be formatted.
        return text


def _refuse_sensitive_values(parsed: ParsedJob) -> None:
    """Raise `UnwritableValue` if a field of the job comes from a sensitive variable: a file must not contain its value."""
    if parsed.sensitive_paths:
        path = parsed.spell_path(format_path(parsed.sensitive_paths[0]))
        names = ", ".join(sorted(parsed.hidden.names))
        raise UnwritableValue(
            f"{path} comes from a sensitive variable ({names}), and the result would contain its value: leave out --evaluate, "
            "or set the field from a variable of the cluster with a template"
        )


# -- HCL


def _read_hcl_values(document: ParsedDocument, parsed: ParsedJob) -> _ReadJob:
    """Return the job of a file in HCL after the evaluation."""
    assert isinstance(parsed.places, PlaceIndex), "a file in HCL has such places"
    _refuse_sensitive_values(parsed)
    losses: list[str] = []
    if _has_declarations(document):
        losses.append("variables and local values are replaced by their values")
    comments = _attach_hcl_comments(document, list_hcl_places(parsed.places, {}, _get_body(document)), [])
    return _ReadJob(parsed.places.copy_written(), {}, comments, losses, parsed.warnings)


def _read_hcl_template(document: ParsedDocument, inputs: VariableInputs, ports: FunctionPorts) -> _ReadJob:
    """Return the job of a file in HCL with its variables and local values."""
    template = read_hcl_template(document, inputs, ports)
    declarations = template.declarations
    places = template.parsed.places
    assert isinstance(places, PlaceIndex), "a file in HCL has such places"
    found = {VARIABLES: declarations.variables, LOCALS: declarations.local_values}
    losses = [_describe_expansion(expansion, template.parsed.hidden) for expansion in declarations.expansions]
    used = {name for expansion in declarations.expansions for name in expansion.variables}
    unused = [name for name, _ in inputs.flags if name in declarations.variables and name not in used]
    if unused:
        names = ", ".join(dict.fromkeys(unused))
        losses.append(
            f"the values of --var for {names} are not used: variables stay; --evaluate replaces them by values"
        )
    hcl_places = list_hcl_places(places, declarations.places, _get_body(document))
    return _ReadJob(
        places.copy_written(),
        {key: value for key, value in found.items() if value},
        _attach_hcl_comments(document, hcl_places, declarations.kept_ranges),
        losses,
        template.parsed.warnings,
    )


def _attach_hcl_comments(
    document: ParsedDocument, places: list[Place], kept_ranges: list[tuple[int, int]]
) -> list[Comment]:
    """Return the comments of a file in HCL, but those inside of expressions that are kept as they are written."""
    if document.is_json:
        return []
    text = document.source.text
    starts, ends = _join_ranges(kept_ranges)
    ranges = [
        (start, end)
        for start, end in find_hcl_comments(text)
        if not (at := bisect_right(starts, start)) or start >= ends[at - 1]
    ]
    return attach_comments(text, ranges, places)


def _join_ranges(ranges: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return the starts and the ends of ranges, with ranges inside of others left out."""
    starts: list[int] = []
    ends: list[int] = []
    for start, end in sorted(ranges):
        if not ends or start >= ends[-1]:
            starts.append(start)
            ends.append(end)
    return starts, ends


def _get_body(document: ParsedDocument) -> SyntaxBody:
    return document.tree if isinstance(document.tree, SyntaxBody) else SyntaxBody()


def _has_declarations(document: ParsedDocument) -> bool:
    """Return whether a file in HCL declares variables or local values."""
    return bool(list_declared_kinds(document))


# -- notes


def _describe_expansion(expansion: Expansion, hidden: HiddenValues) -> str:
    """Return the note about a dynamic block, with the values of variables that it was evaluated with."""
    blocks = "1 block" if expansion.count == 1 else f"{expansion.count} blocks"
    line = expansion.place.location.line
    values = [
        f"var.{name} = {_shorten(hidden.hide(json.dumps(value, ensure_ascii=False)))}"
        for name, value in expansion.variables.items()
    ]
    source = f", evaluated with {', '.join(values)}" if values else ""
    return f'the dynamic "{expansion.kind}" of line {line} is replaced by {blocks}{source}'


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_VALUE_CHARS else f"{text[:MAX_SHOWN_VALUE_CHARS]}..."


def _describe_normal_form(source: SourceFile) -> str:
    """Return the note about texts that HCL changes."""
    at = next(
        number for number, line in enumerate(source.text.split("\n"), 1) if not unicodedata.is_normalized("NFC", line)
    )
    return f"texts have the normal form NFC of Unicode, as in each file in HCL; the first that differs is in line {at}"


# -- writing


def _write(read: _ReadJob, target: JobFormat, ports: FunctionPorts) -> Conversion:
    """Return a job in a language, with its comments if the language has any."""
    conversion = _write_template(read, target) if read.declarations else _write_job(read.job, target)
    if target is not JobFormat.YAML:
        read.comments = [each for each in read.comments if not _EDITOR_COMMENT.search(each.source)]
    if read.comments:
        text = _insert_comments(conversion.text, read.comments, target, ports)
        if text is None:
            conversion.losses.append("comments are left out")
        else:
            conversion.text = text
    conversion.losses += read.losses
    conversion.warnings += read.warnings
    return conversion


def _write_template(read: _ReadJob, target: JobFormat) -> Conversion:
    """Return a job whose texts are templates, with its declarations."""
    variables, local_values = read.declarations.get(VARIABLES, {}), read.declarations.get(LOCALS, {})
    if target is JobFormat.HCL:
        job = {name: value for name, value in read.job.items() if name not in _SERVER_FIELDS}
        written = write_hcl_job(job, variables=variables, local_values=local_values)
        return Conversion(written.text, _describe_lost_paths(written.lost_paths))
    if target is JobFormat.TOML:
        variables = {name: _replace_null_default(declaration) for name, declaration in variables.items()}
    declarations = {key: value for key, value in ((VARIABLES, variables), (LOCALS, local_values)) if value}
    job = read.job if read.is_written_as_is else _simplify(read.job, target)
    return Conversion(write_document({**(declarations or {LOCALS: {}}), **job}, MarkupFormat(target)))


def _replace_null_default(declaration: Any) -> Any:
    """Return a declaration for TOML, which has no null: a template evaluates to it."""
    if isinstance(declaration, dict) and "default" in declaration and declaration["default"] is None:
        return {**declaration, "default": _NULL_TEMPLATE}
    return {} if declaration is None else declaration


def _write_job(document: Mapping[str, Any], target: JobFormat) -> Conversion:
    """Return a job in a language, without the fields that only servers set."""
    if target is JobFormat.HCL:
        written = write_hcl_job(_drop_server_fields(document))
        return Conversion(written.text, _describe_lost_paths(written.lost_paths))
    return Conversion(write_document(_simplify(document, target), MarkupFormat(target)))


def _simplify(document: Mapping[str, Any], target: JobFormat) -> dict[str, Any]:
    return simplify_job(_drop_server_fields(document), has_durations=target is not JobFormat.JSON)


def _drop_server_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    ignored = list_submitted_fields(Job).ignored_names | _SERVER_FIELDS
    return {name: value for name, value in document.items() if name not in ignored}


def _describe_lost_paths(paths: list[str]) -> list[str]:
    return [f"HCL cannot express {path}: it is left out" for path in paths]


def _insert_comments(text: str, comments: list[Comment], target: JobFormat, ports: FunctionPorts) -> str | None:
    """Return a text with comments, or `None` if it cannot have them."""
    if target is JobFormat.JSON:
        return None
    try:
        if target is not JobFormat.HCL:
            written = parse_markup(text, MarkupFormat(target))
            commented = insert_comments(text, comments, list_markup_places(text, written))
            return commented if parse_markup(commented, written.format).value == written.value else None
        document = parse_document(text)
        template = read_hcl_template(document, VariableInputs(), ports)
        places = list_hcl_places(template.parsed.places, template.declarations.places, _get_body(document))
        commented = insert_comments(text, comments, places, is_hcl=True)
        return format_hcl(commented) if is_same_document(commented, _get_body(document)) else None
    except (DocumentErrors, MarkupError):
        return None
