"""Job files of all languages: reads a text into the document that servers validate, and locates problems in the text."""

import re
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

from wharf.contract.model.jobs.sensitive_fields import write_pointers
from wharf.contract.wire.jobs.messages import JobSource
from wharf.job_files.fields import explain_type, is_duration_field
from wharf.job_files.hcl.parsed_job import ParsedJob
from wharf.job_files.hcl.parsing import evaluate_hcl_job
from wharf.job_files.hcl_writer import Markers, format_expression
from wharf.job_files.markup_jobs import (
    find_origin,
    find_value,
    has_variables,
    is_hcl_in_json,
    list_declared_variables,
    map_markup_job,
    read_markup,
)
from wharf.job_files.validation_issues import ValidationIssue, parse_validation_issues
from wharf.languages.hcl.calls import FunctionPorts
from wharf.languages.hcl.diagnostics import SourceFile
from wharf.languages.hcl.documents import ParsedDocument, list_declared_kinds, list_declared_names, parse_document
from wharf.languages.hcl.values import COLLECTIONS, Value, to_plain
from wharf.languages.hcl.variables import VariableInputs
from wharf.languages.markup import MarkupDocument, MarkupFormat

HCL: Final = "hcl"
HCL_SUFFIXES: Final = (".hcl", ".nomad", ".wharf")
"""The endings of job files in HCL."""
SUBMITTED_HCL_FORMAT: Final = "hcl2"
"""The name of HCL in the stored source of a job."""
_FORMATS_BY_SUFFIX: Final = {
    ".yaml": MarkupFormat.YAML, ".yml": MarkupFormat.YAML, ".json": MarkupFormat.JSON, ".toml": MarkupFormat.TOML,
}  # fmt: skip
JOB_FILE_SUFFIXES: Final = (*HCL_SUFFIXES, *_FORMATS_BY_SUFFIX)
"""The endings that decide the language of a job file."""
_HCL_START: Final = re.compile(
    r'^(?:(?:job|variable)[ \t]+(?:"[^"\n]*"|[\w-]+)[ \t]*\{|(?:variables|locals)[ \t]*\{)'
    r'|\A(?:\s|(?:#|//)[^\n]*\n)*+[A-Za-z][\w-]*(?:[ \t]+(?:"[^"\n]*"|[\w-]+)){0,2}[ \t]*\{[ \t]*\r?$',
    re.MULTILINE,
)
"""A job or variable at the start of any line, or any block at the start of the text."""
_TOML_START: Final = re.compile(r"(?:\s|#[^\n]*\n)*(?:[\w\"'.-]+[ \t]*=|\[)")
OPAQUE_FIELDS: Final = frozenset({"Config", "Env", "Meta", "Params"})
"""Maps whose keys the user chooses: a key such as `Timeout` in them is not a duration field."""
_UNKNOWN_FIELD: Final = re.compile(r"Job\.(\w+(?:\[\d+\]|\.\w+)*) (is not a known field.*)")
_OTHER_FIELD: Final = re.compile(r"(: see )([A-Z]\w*(?:\[\d+\]|\.\w+)+)$")
"""The end of a problem that names a second field."""
MIN_DURATION_NS: Final = 1_000_000
"""A shorter duration in a job is almost certainly a number of seconds without its unit."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job file: `source` is its text, `parsed` the job with the field names of the API."""

    name: str
    source: str
    format: str
    parsed: ParsedJob
    inputs: VariableInputs

    @property
    def document(self) -> dict[str, Any]:
        return self.parsed.document

    @property
    def id(self) -> str:
        return str(self.document.get("ID") or "")

    def build_submission(self) -> JobSource:
        """Return the source that is stored with the job: the text, and the values of its variables."""
        flags, variables = describe_submitted_variables(self.inputs, self.parsed.variables, self.parsed.hidden.names)
        stored_format = SUBMITTED_HCL_FORMAT if self.format == HCL else self.format
        return JobSource(
            source=self.source,
            format=stored_format,
            variable_flags=flags,
            variables=variables,
            sensitive_fields=self.sensitive_fields or None,
        )

    @property
    def sensitive_fields(self) -> tuple[str, ...]:
        """The JSON pointers of the fields whose values come from sensitive variables."""
        return write_pointers(self.parsed.sensitive_paths)

    def format_errors(self, *texts: str) -> str:
        """Return the server's validation errors with their places in this file, sorted by them."""
        issues = [issue for text in texts for issue in parse_validation_issues(text)]
        issues.sort(key=self._find_offset)
        # Several groups may inherit one field of the job: its problem is reported once.
        lines = dict.fromkeys(self._format_issue(issue) for issue in issues)
        return self.parsed.hidden.hide("\n".join(lines))

    def format_warning(self, warning: str) -> str:
        """Return a server's warning, with the position of the field that it is about."""
        unknown_field = _UNKNOWN_FIELD.fullmatch(warning)
        if unknown_field is not None:
            return f"{self.parsed.find_place(unknown_field[1])}: {unknown_field[1]} {unknown_field[2]}"
        issues = parse_validation_issues(warning)
        if len(issues) != 1 or not issues[0].field_path:
            return warning
        path = find_origin(self.document, issues[0].field_path)
        text = self.parsed.hide_message(path, issues[0].text)
        return f"{self.parsed.find_place(path)}: {self.parsed.spell_path(self.parsed.cut_path(path))}: {text}"

    def list_warnings(self) -> list[str]:
        """Return the warnings that need no server: of the parser, and durations that probably lack a unit."""
        return [
            *self.parsed.warnings,
            *(
                f"{self.parsed.find_place(path)}: {self.parsed.spell_path(path)}: {duration} without a unit means "
                f'nanoseconds: write "{duration}s" for seconds'
                for path, duration in _iter_tiny_durations(self.document)
                if not self.parsed.is_sensitive(path)
            ),
        ]

    def _find_offset(self, issue: ValidationIssue) -> int:
        """Return where the field of a validation problem is in the file; 0 if the problem names no field."""
        return self.parsed.find_place(find_origin(self.document, issue.field_path)).start if issue.field_path else 0

    def _format_issue(self, issue: ValidationIssue) -> str:
        """Return one validation problem with its place; a number error of a duration field names the format."""
        if not issue.field_path:
            located = self.format_warning(issue.text)
            return located if located != issue.text else f"{self.name}: {self.parsed.hide_keys(issue.text)}"
        text, field_path, fix = issue.text, find_origin(self.document, issue.field_path), ""
        is_job = field_path == "Job"
        name = field_path if is_job else self.parsed.spell_path(self.parsed.cut_path(field_path))
        if self.format != HCL and not self.parsed.is_sensitive(field_path):
            value, format = find_value(self.document, field_path), MarkupFormat(self.format)
            written = self.parsed.find_place(field_path).text if field_path in self.parsed.places else ""
            text, fix = explain_type(field_path, text, value, format, file_path=name, written=written)
        text = _OTHER_FIELD.sub(lambda match: f"{match[1]}{self.parsed.find_place(match[2])}", text)
        return self.parsed.render_problem("" if is_job else field_path, name, text, fix)


def detect_format(path: str, text: str) -> str:
    """Return the language of a job file by the ending of its name, else by its text."""
    if path.endswith(HCL_SUFFIXES):
        return HCL
    for suffix, format in _FORMATS_BY_SUFFIX.items():
        if path.endswith(suffix):
            return format
    if text.lstrip().startswith("{"):
        return MarkupFormat.JSON
    if _HCL_START.search(text):
        return HCL
    return MarkupFormat.TOML if _TOML_START.match(text) else MarkupFormat.YAML


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """The text of a job file and what it is evaluated with. It is a document in HCL, or one in another language."""

    name: str
    text: str
    format: str
    inputs: VariableInputs
    ports: FunctionPorts
    markup: MarkupDocument | None = None
    document: ParsedDocument | None = None


def open_job_text(
    text: str,
    name: str,
    format: str,
    ports: FunctionPorts,
    read_inputs: Callable[[Mapping[str, bool], bool], VariableInputs],
    *,
    has_values: bool = False,
) -> OpenedFile:
    """Return a job file as a document. Raises `DocumentErrors`, also for errors that `read_inputs` finds.

    `read_inputs` gets the declared variables, and whether the file can use any, and returns their values; it is called after
    the syntax of the file is checked.
    `has_values`: whether the caller has values even for a file that declares no variables.
    """
    if format != HCL:
        markup = read_markup(text, name, MarkupFormat(format))
        if format != MarkupFormat.JSON or not is_hcl_in_json(markup.value):
            needs_inputs = has_variables(markup.value) or has_values
            inputs = read_inputs(list_declared_variables(markup.value), True) if needs_inputs else VariableInputs()
            return OpenedFile(name, text, format, inputs, ports, markup=markup)
    document = parse_document(text, name)
    has_inputs = bool(list_declared_kinds(document) - {"locals"})
    inputs = read_inputs(list_declared_names(document), has_inputs)
    return OpenedFile(name, text, HCL, inputs, ports, document=document)


def read_opened_file(opened: OpenedFile) -> JobFile:
    """Return the job of a file. Raises `DocumentErrors` with all errors of syntax, variables and names.

    Names are fields, and options of drivers. Servers check the values.
    """
    if opened.markup is not None:
        source = SourceFile(opened.name, opened.text)
        parsed = map_markup_job(opened.markup, source, opened.inputs, opened.ports)
    else:
        assert opened.document is not None, "a file is a document of one of the languages"
        parsed = evaluate_hcl_job(opened.document, opened.inputs, opened.ports, checks_tasks=True)
    return JobFile(opened.name, opened.text, opened.format, parsed, opened.inputs)


def describe_submitted_variables(
    inputs: VariableInputs, variables: Mapping[str, Value], sensitive_names: Set[str]
) -> tuple[dict[str, str] | None, str]:
    """Return what is stored with a job about its variables: flags with simple values, and the text of a values file.

    The values file has the values of files, and those flags that are lists or maps. Each name occurs once. The environment
    is not stored: it may hold secrets that are not meant for the cluster. Sensitive variables are left out (record 0245).
    """

    lines: dict[str, str] = {}
    for document in (*inputs.automatic_files, *inputs.files):
        for name in document.body.arguments:
            lines.pop(name, None)
            if name in variables and name not in sensitive_names:
                lines[name] = f"{name} = {format_expression(to_plain(variables[name]), markers=Markers.ESCAPE)}\n"
    flags: dict[str, str] = {}
    for name, text in inputs.flags:
        if name not in variables or name in sensitive_names:
            continue
        lines.pop(name, None)
        if isinstance(variables[name], COLLECTIONS):
            flags.pop(name, None)
            lines[name] = f"{name} = {format_expression(to_plain(variables[name]), markers=Markers.ESCAPE)}\n"
        else:
            flags[name] = text
    return flags or None, "".join(lines.values())


def _iter_tiny_durations(value: Any, path: str = "") -> Iterator[tuple[str, int]]:  # Any value of the document.
    """Yield the durations below MIN_DURATION_NS in a document, each as its field path and its nanoseconds."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _iter_tiny_durations(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            item_path = f"{path}.{key}" if path else key
            if type(item) is int and 0 < item < MIN_DURATION_NS and is_duration_field(item_path):
                yield item_path, item
            elif key not in OPAQUE_FIELDS:
                yield from _iter_tiny_durations(item, item_path)
